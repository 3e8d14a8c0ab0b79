"""Routes of the issue API below `/api/`, without trailing slashes, and its schema."""

from __future__ import annotations

from django.urls import include, path

from queue_app.api.work import comments, connected_apps, inbox, issues, squads, tasks, workspaces
from queue_app.api.work.schema import SchemaView

routes = [
    path("issues", issues.IssuesView.as_view()),
    path("issues/quick-create", inbox.QuickCreateView.as_view()),
    path("issues/search", issues.SearchView.as_view()),
    path("issues/<str:ref>", issues.IssueView.as_view()),
    path("issues/<str:ref>/children", issues.ChildrenView.as_view()),
    path("issues/<str:ref>/metadata", issues.MetadataView.as_view()),
    path("issues/<str:ref>/metadata/<str:key>", issues.MetadataKeyView.as_view()),
    path("issues/<str:ref>/task-runs", issues.RunsView.as_view()),
    path("issues/<str:ref>/usage", issues.UsageView.as_view()),
    path("issues/<str:ref>/rerun", issues.RerunView.as_view()),
    path("issues/<str:ref>/squad-evaluated", squads.EvaluatedView.as_view()),
    path("issues/<str:ref>/comments", comments.CommentsView.as_view()),
    path("comments/<str:comment_id>", comments.CommentView.as_view()),
    path("comments/<str:comment_id>/resolve", comments.ResolveView.as_view()),
    path("tasks/<str:task_id>", tasks.TaskView.as_view()),
    path("tasks/<str:task_id>/messages", tasks.MessagesView.as_view()),
    path("tasks/<str:task_id>/cancel", tasks.CancelView.as_view()),
    path("inbox", inbox.InboxView.as_view()),
    path("inbox/<str:item_id>/read", inbox.ReadView.as_view()),
    path("agents", workspaces.AgentsView.as_view()),
    path("agents/<str:agent_id>", workspaces.AgentView.as_view()),
    path("runtimes", workspaces.RuntimesView.as_view()),
    path("connected-apps", connected_apps.ConnectedAppsView.as_view()),
    path("connected-apps/<str:app_id>", connected_apps.ConnectedAppView.as_view()),
    path("squads", squads.SquadsView.as_view()),
    path("squads/<str:squad_id>", squads.SquadView.as_view()),
    path("workspaces/<str:workspace_id>", workspaces.WorkspaceView.as_view()),
    path("workspaces/<str:workspace_id>/members", workspaces.MembersView.as_view()),
    path("workspaces/<str:workspace_id>/members/<str:user_id>", workspaces.MemberView.as_view()),
    path("workspaces/<str:workspace_id>/runtime-profiles", workspaces.ProfilesView.as_view()),
    path("runtime-profiles/<str:profile_id>", workspaces.ProfileView.as_view()),
]

described = [path("api/", include(routes))]
"""What the schema speaks of: this API alone. The daemon protocol has its own reference."""

urlpatterns = [*routes, path("schema/", SchemaView.as_view(patterns=described), name="schema")]
