"""HTTP routes of the queue, without trailing slashes: a redirect would turn a daemon's POST into a GET."""

from __future__ import annotations

from importlib.util import find_spec

from django.urls import URLPattern, URLResolver, include, path

from queue_app.api import account
from queue_app.api.daemon import account as daemon_account

urlpatterns: list[URLPattern | URLResolver] = [
    path("api/me", account.MeView.as_view()),
    path("api/workspaces", account.WorkspacesView.as_view()),
    path("api/tokens", account.TokensView.as_view()),
    path("api/tokens/current/renew", daemon_account.renew),
    path("api/tokens/<str:token_id>", account.TokenView.as_view()),
    path("api/daemon/", include("queue_app.api.daemon.urls")),
    path("api/", include("queue_app.api.work.urls")),
]
if find_spec("queue_app.api.ops"):
    urlpatterns.append(path("api/", include("queue_app.api.ops.urls")))
