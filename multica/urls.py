"""Every HTTP route of the server: each package mounts its own, this file only says where."""

from __future__ import annotations

from importlib.util import find_spec

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path

from multica import probes

urlpatterns: list[URLPattern | URLResolver] = [
    path("health", probes.health),
    path("ready", probes.ready),
]
# Before the admin, whose catch-all would take its pages.
if find_spec("queue_app.urls"):
    urlpatterns.append(path("", include("queue_app.urls")))
if find_spec("cron_app.urls"):
    urlpatterns.append(path("", include("cron_app.urls")))
urlpatterns.append(path("admin/", admin.site.urls))
