"""Models and migrations agree, so that a fresh database is what the code believes it is."""

from __future__ import annotations

from django.apps import apps
from django.db.migrations.autodetector import MigrationAutodetector
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState


def test_no_model_change_lacks_its_migration() -> None:
    loader = MigrationLoader(None, ignore_no_migrations=True)
    assert not loader.detect_conflicts()
    detector = MigrationAutodetector(loader.project_state(), ProjectState.from_apps(apps))
    missing = detector.changes(graph=loader.graph)
    assert not {app: [migration.operations for migration in found] for app, found in missing.items()}
