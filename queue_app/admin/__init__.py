"""The operators' pages over the queue's tables. State is only looked at here; it changes through services."""

from django.contrib import admin

from queue_app.admin import evidence, people, places, tasks, work

__all__ = ["evidence", "people", "places", "tasks", "work"]

admin.site.site_header = admin.site.site_title = "Multica"
admin.site.index_title = "Control plane"
admin.site.site_url = None
