"""`manage.py createworkspace NAME --owner USER`: a workspace with its first member."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import IntegrityError, transaction
from django.utils.text import slugify

from queue_app.models import Member, User, Workspace


class Command(BaseCommand):
    """Makes a workspace and prints its id."""

    help = "Create a workspace with its owner and print its id."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Name, owner, and what is derived from the name when it is not given."""
        parser.add_argument("name")
        parser.add_argument("--owner", required=True, help="user name of the first member; must exist")
        parser.add_argument("--slug", default="", help="default: made from the name")
        parser.add_argument("--prefix", default="MUL", help="prefix of issue keys, such as MUL in MUL-12")

    def handle(self, *args: Any, **options: Any) -> None:
        """Create both rows or none."""
        owner = User.objects.filter(username=options["owner"]).first()
        if owner is None:
            raise CommandError(f"no user {options['owner']!r}: make one with `manage.py createsuperuser`")
        slug = options["slug"] or slugify(options["name"])[:64] or "workspace"
        prefix = options["prefix"].upper()
        if not prefix.isalnum() or len(prefix) > 8:
            raise CommandError("--prefix must be 1 to 8 letters and digits")
        try:
            with transaction.atomic():
                workspace = Workspace.objects.create(name=options["name"], slug=slug, issue_prefix=prefix)
                Member.objects.create(workspace=workspace, user=owner, role=Member.Role.OWNER)
        except IntegrityError:
            raise CommandError(f"a workspace with the slug {slug!r} exists already: give another --slug") from None
        self.stdout.write(str(workspace.pk))
