"""The command `agents import`: templates of llm, and roles of aichat."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
import msgspec

from vibe_llms.agents.imports import (
    AGENT_STATUSES,
    AgentImportReport,
    import_agents,
    survey_sources,
)
from vibe_llms.base.exceptions import RequestError
from vibe_llms.cli.completion import complete_paths
from vibe_llms.cli.running import asynchronous
from vibe_llms.cli.shared_options import json_option
from vibe_llms.cli.terminal import note, shown, write, write_json
from vibe_llms.messages.hidden import one_line
from vibe_llms.opening import open_session


@click.command("import")
@click.argument("paths", nargs=-1, metavar="[PATH]...", shell_complete=complete_paths)
@click.option("--dry-run", is_flag=True, help="Write nothing; print what would be imported.")
@click.option("--force", is_flag=True, help="Replace agents that differ.")
@json_option
@asynchronous
async def import_templates(paths: Sequence[str], dry_run: bool, force: bool, as_json: bool) -> int:
    """Import templates of llm and roles of aichat as agents.

    PATH is a file or a folder; by default, the folders in which these programs keep them. Their
    Python code is never run. Importing again changes nothing. Exits with status 1 if a template or
    a role was refused.
    """
    sources: Sequence[object] = paths or survey_sources()
    if not sources:
        raise RequestError(
            "no templates of llm and no roles of aichat were found in their usual folders; name a "
            "file or a folder: vibe-llms agents import PATH"
        )
    if not paths:
        note(shown(f"importing from {' and '.join(map(str, sources))}"))
    async with open_session() as session:
        report = import_agents(
            [str(one) for one in sources],
            session.configuration,
            locate=session.locate_model,
            dry_run=dry_run,
            force=force,
        )
    if as_json:
        write_json(_encode(report))
    else:
        _print(report)
    return int(report.counts["refused"] > 0)


def _encode(report: AgentImportReport) -> str:
    return msgspec.json.encode(
        {
            "counts": report.counts,
            "file": report.file,
            "dry_run": report.dry_run,
            "agents": report.agents,
        }
    ).decode()


def _print(report: AgentImportReport) -> None:
    for one in report.agents:
        told = f": {'; '.join(one.reasons)}" if one.reasons else ""
        name = one.source if one.status == "refused" else one.name
        if one.status == "refused" and one.name not in one.source:
            name += f", {one.name}"
        note(shown(one_line(f"{one.status}: {name}{told}")))
    parts = [
        f"{report.counts[status]:,} {status}" for status in AGENT_STATUSES if report.counts[status]
    ]
    lead = "would import: " if report.dry_run else ""
    write(sys.stdout, f"{lead}{', '.join(parts)}\n")
