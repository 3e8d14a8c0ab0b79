"""Statements about runtimes: being heard, and being registered. Each finds its rows by a unique key and locks only
those, in the order of that key."""

from __future__ import annotations

_FRESH_SINCE = """CASE WHEN {row}.status = 'online'
            AND {row}.last_seen_at >= now() - make_interval(secs => %(freshness)s)
       THEN coalesce({row}.fresh_since, now()) ELSE now() END"""
"""An unbroken stretch goes on while the row was online and heard within the freshness window."""

HEARD = f"""
UPDATE agent_runtime r
   SET last_seen_at = greatest(r.last_seen_at, now() - make_interval(secs => h.age)),
       fresh_since = {_FRESH_SINCE.format(row="r")},
       slots = coalesce(h.slots, r.slots)
  FROM (SELECT u.id, u.age, u.slots::jsonb FROM unnest(%(ids)s::uuid[], %(ages)s::float8[], %(slots)s::text[])
          AS u(id, age, slots) ORDER BY u.id) h
 WHERE r.id = h.id AND r.status = 'online'
RETURNING r.id
"""
"""A batch of heartbeats of runtimes that are online. One that is missing in the answer went offline or away."""

BACK_ONLINE = f"""
UPDATE agent_runtime r
   SET status = 'online', last_seen_at = now(), fresh_since = {_FRESH_SINCE.format(row="r")}, updated_at = now(),
       metadata = r.metadata - 'offline_reason', slots = coalesce(%(slots)s::jsonb, r.slots)
 WHERE r.id = %(id)s
RETURNING r.id
"""
"""One runtime that was offline or never heard."""

_SET = f"""
   SET name = excluded.name, provider = excluded.provider, status = 'online', last_seen_at = now(),
       fresh_since = {_FRESH_SINCE.format(row="r")}, owner_id = excluded.owner_id,
       device_info = excluded.device_info, metadata = excluded.metadata, updated_at = now()
RETURNING id, name, provider, status, profile_id
"""

_UPSERT = """
INSERT INTO agent_runtime AS r (id, workspace_id, daemon_id, name, custom_name, provider, profile_id, runtime_mode,
                           status, last_seen_at, fresh_since, owner_id, device_info, metadata, pause_note, updated_at)
SELECT u.id, %(workspace)s, %(daemon)s, u.name, '', u.provider, u.profile_id, 'local',
       'online', now(), now(), %(owner)s, %(device)s, u.metadata, '', now()
  FROM jsonb_to_recordset(%(entries)s::jsonb)
       AS u(id uuid, name text, provider text, profile_id uuid, metadata jsonb)
 ORDER BY u.provider, u.profile_id
"""

REGISTER_BUILTIN = (
    f"{_UPSERT} ON CONFLICT (workspace_id, daemon_id, provider) WHERE profile_id IS NULL DO UPDATE {_SET}"
)
REGISTER_PROFILE = (
    f"{_UPSERT} ON CONFLICT (workspace_id, daemon_id, profile_id) WHERE profile_id IS NOT NULL DO UPDATE {_SET}"
)
"""The same machine and agent CLI, or profile, is always the same row, however many register it at once."""

ADOPT = """
UPDATE agent_runtime r SET daemon_id = %(daemon)s, updated_at = now()
 WHERE r.workspace_id = %(workspace)s AND r.daemon_id = ANY(%(legacy)s) AND r.owner_id = %(owner)s
   AND r.id = (SELECT o.id FROM agent_runtime o
                WHERE o.workspace_id = r.workspace_id AND o.daemon_id = ANY(%(legacy)s) AND o.owner_id = r.owner_id
                  AND o.provider = r.provider AND o.profile_id IS NOT DISTINCT FROM r.profile_id
                ORDER BY o.last_seen_at DESC NULLS LAST, o.id LIMIT 1)
   AND NOT EXISTS (SELECT 1 FROM agent_runtime n
                    WHERE n.workspace_id = r.workspace_id AND n.daemon_id = %(daemon)s AND n.provider = r.provider
                      AND n.profile_id IS NOT DISTINCT FROM r.profile_id)
"""
"""A machine that got a new id keeps its rows: those of its own user under a former id, unless it has new ones."""

OFFLINE = """
UPDATE agent_runtime r
   SET status = 'offline', updated_at = now(),
       metadata = CASE WHEN o.reason IS NULL THEN r.metadata
                       ELSE r.metadata || jsonb_build_object('offline_reason', o.reason::jsonb) END
  FROM (SELECT u.id, u.reason FROM unnest(%(ids)s::uuid[], %(reasons)s::text[]) AS u(id, reason) ORDER BY u.id) o
 WHERE r.id = o.id AND r.workspace_id = ANY(%(workspaces)s)
RETURNING r.id, r.workspace_id
"""
