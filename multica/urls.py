"""Every HTTP route of the server: each package mounts its own, this file only says where."""

from __future__ import annotations

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path

from multica import probes

urlpatterns: list[URLPattern | URLResolver] = [
    path("health", probes.health),
    path("ready", probes.ready),
    # Before the admin, whose catch-all would take its pages.
    path("", include("queue_app.urls")),
    path("admin/", admin.site.urls),
]
