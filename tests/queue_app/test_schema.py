"""The database agrees with the Python rules that it was built from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.db import connection, transaction
from django.db.utils import IntegrityError

from queue_app import transitions
from queue_app.domain import diagram
from queue_app.domain.states import LAWFUL_MOVES, Status
from queue_app.models import AgentTask, TaskEvent
from queue_app.sql import schema
from tests.support import factories

pytestmark = pytest.mark.django_db

_BODY = re.compile(r"REPLACE FUNCTION (\w+)\s*\(.*?\$\$(.*?)\$\$", re.DOTALL)


@pytest.mark.parametrize(("name", "body"), _BODY.findall(schema.install()))
def test_installed_functions_are_the_ones_the_code_describes(name: str, body: str) -> None:
    """A changed edge table or list of carried columns without a migration is drift: this says so."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT prosrc FROM pg_proc WHERE proname = %s", [name])
        installed = [row[0].strip() for row in cursor.fetchall()]
    assert installed == [body.strip()]


@pytest.mark.parametrize("source", sorted(Status))
@pytest.mark.parametrize("target", sorted(Status))
def test_the_trigger_allows_exactly_the_edges_of_the_table(source: Status, target: Status) -> None:
    """Q-07, Q-08: whoever writes, a status moves only along the edges of `domain.states`."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE edge (LIKE agent_task_queue) ON COMMIT DROP")
        cursor.execute(
            "CREATE TRIGGER edge BEFORE UPDATE OF status ON edge FOR EACH ROW EXECUTE FUNCTION task_guard_edge()"
        )
        cursor.execute("ALTER TABLE edge ALTER COLUMN id DROP NOT NULL")
        columns = [f.column for f in AgentTask._meta.concrete_fields if not f.null and f.column != "status"]
        for column in columns:
            cursor.execute(f"ALTER TABLE edge ALTER COLUMN {column} DROP NOT NULL")
        cursor.execute("INSERT INTO edge (status) VALUES (%s)", [source])
        lawful = source == target or (source, target) in LAWFUL_MOVES
        try:
            with transaction.atomic():
                cursor.execute("UPDATE edge SET status = %s", [target])
            allowed = True
        except IntegrityError:
            allowed = False
    assert allowed == lawful


def test_events_are_append_only_and_go_with_their_task() -> None:
    """Events can be neither edited nor deleted while their task stands, and go with it."""
    workspace = factories.make_workspace()
    task = factories.enqueue(factories.make_agent(factories.make_runtime(workspace)), factories.make_issue(workspace))
    for statement in ("UPDATE task_event SET verb = 'x'", "DELETE FROM task_event"):
        with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)
    AgentTask.objects.filter(id=task.id).delete()
    assert not TaskEvent.objects.exists()


def test_a_conflict_on_the_pending_slot_makes_no_row_and_no_event() -> None:
    """An enqueue that meets an occupied slot writes nothing of that task and keeps the others."""
    workspace = factories.make_workspace()
    agent = factories.make_agent(factories.make_runtime(workspace))
    first, second = factories.make_issue(workspace), factories.make_issue(workspace)
    factories.enqueue(agent, first)
    values = [factories.task_values(agent, first), factories.task_values(agent, second)]
    made = transitions.enqueue(values, actor="user:test")
    assert [row.issue_id for row in made] == [second.id]
    assert TaskEvent.objects.count() == 2


def test_the_page_on_states_is_the_edge_table() -> None:
    """The docs show the state machine that runs."""
    page = Path(__file__).parents[2] / "docs" / "states.md"
    assert page.read_text(encoding="utf-8") == diagram.page()
