"""`manage.py createtoken USER`: a personal access token for a daemon or a command line."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from queue_app.errors import InvalidError
from queue_app.models import User, Workspace
from queue_app.services import tokens
from queue_app.wire.daemon import ident_of


class Command(BaseCommand):
    """Prints the secret, once: only its hash is kept."""

    help = "Create a personal access token and print its secret. It is shown this once and cannot be read again."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Whose, for what, for how long."""
        parser.add_argument("user", help="user name")
        parser.add_argument("--workspace", default="", help="slug or id; default: every workspace of the user")
        parser.add_argument("--name", default="createtoken", help="what the token is for")
        parser.add_argument("--days", type=int, default=90, help="days until it ends; 0: never (default: 90)")

    def handle(self, *args: Any, **options: Any) -> None:
        """Create it and print nothing but the secret on standard output."""
        user = User.objects.filter(username=options["user"]).first()
        if user is None:
            raise CommandError(f"no user {options['user']!r}")
        workspace = self._workspace(user, options["workspace"]) if options["workspace"] else None
        try:
            secret, _ = tokens.create(
                user, name=options["name"], workspace=workspace, days=options["days"] or None, actor="command"
            )
        except InvalidError as error:
            raise CommandError(str(error)) from None
        self.stdout.write(secret)

    def _workspace(self, user: User, text: str) -> Workspace:
        mine = Workspace.objects.filter(members__user=user)
        workspace_id = ident_of(text)
        named = mine.filter(slug=text).first()
        found = named or (mine.filter(pk=workspace_id).first() if workspace_id is not None else None)
        if found is None:
            raise CommandError(f"{user} is in no workspace {text!r}")
        return found
