"""Routes below `/api/daemon/`, without trailing slashes. What is not here answers 501, never 404."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.urls import path, re_path

from queue_app.api.daemon import claims, gc_checks, runtimes, tasks, workspaces
from queue_app.api.daemon.door import answer


def unknown(request: HttpRequest) -> HttpResponse:
    """A path that this server does not have. A daemon reads 404 as "gone" and may delete, so it is never said here."""
    return answer(501, {"error": "not implemented", "code": "not_implemented"})


unknown.csrf_exempt = True  # type: ignore[attr-defined]

_RUNTIME = "runtimes/<str:runtime_id>"
_TASK = "tasks/<str:task_id>"

urlpatterns = [
    path("workspaces", workspaces.listed),
    path("workspaces/<str:workspace_id>/repos", workspaces.repos),
    path("workspaces/<str:workspace_id>/runtime-profiles", workspaces.runtime_profiles),
    path("workspaces/<str:workspace_id>/issues/gc-check", gc_checks.issues),
    path("register", runtimes.registered),
    path("deregister", runtimes.deregistered),
    path("heartbeat", runtimes.heard),
    path("claim", claims.batch),
    path("tasks/claim", claims.batch),
    path(f"{_RUNTIME}/tasks/claim", claims.one),
    path(f"{_RUNTIME}/tasks/pending", runtimes.pending),
    path(f"{_RUNTIME}/recover-orphans", runtimes.orphans),
    path(f"{_RUNTIME}/{_TASK}/prepare-lease", tasks.prepare_lease),
    path(f"{_RUNTIME}/{_TASK}/skill-bundles/resolve", tasks.skill_bundles),
    path(f"{_RUNTIME}/update/<str:request_id>/result", runtimes.requested_result),
    path(f"{_RUNTIME}/models/<str:request_id>/result", runtimes.requested_result),
    path(f"{_RUNTIME}/local-skills/<str:request_id>/result", runtimes.requested_result),
    path(f"{_RUNTIME}/local-skills/import/<str:request_id>/result", runtimes.requested_result),
    path(f"{_TASK}/wait-local-directory", tasks.wait_local_directory),
    path(f"{_TASK}/start", tasks.started),
    path(f"{_TASK}/status", tasks.status),
    path(f"{_TASK}/progress", tasks.progress),
    path(f"{_TASK}/messages", tasks.messages),
    path(f"{_TASK}/session", tasks.session),
    path(f"{_TASK}/usage", tasks.usage),
    path(f"{_TASK}/complete", tasks.completed),
    path(f"{_TASK}/fail", tasks.failed),
    path(f"{_TASK}/cancel-ack", tasks.cancel_ack),
    path(f"{_TASK}/gc-check", gc_checks.task),
    path("issues/<str:issue_id>/gc-check", gc_checks.issue),
    re_path(r"^.*$", unknown),
]
