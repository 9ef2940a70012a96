import asyncio
import readline  # noqa: F401  (arrow keys edit the line)
import subprocess
import sys
from difflib import unified_diff
from pathlib import Path

from vibe_llms import ApprovalRequest, Decision, VibeLlmsError, invoker, open_session

MODEL = "anthropic/claude-sonnet-5-5"
if len(sys.argv) != 3 or not Path(sys.argv[1]).is_dir():
    sys.exit("usage: python coding_helper.py FOLDER TASK")
ROOT = Path(sys.argv[1]).resolve()


def locate(path: str) -> Path:
    found = (ROOT / path).resolve()
    if not found.is_relative_to(ROOT):
        raise ValueError(f"{path} is outside of the project")
    return found


def read_file(path: str) -> str:
    """Read a file of the project."""
    return locate(path).read_text()


@invoker(approval="ask")
def write_file(path: str, text: str) -> str:
    """Create a file of the project, or replace all of its text."""
    return f"{locate(path).write_text(text)} characters written"


@invoker(approval="ask", timeout_seconds=120)
def run_tests() -> str:
    """Run the tests of the project."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True).stdout


def approve(request: ApprovalRequest) -> Decision:
    arguments = request.invocation.parsed or {}
    print(f"{request.invocation.name} {arguments.get('path', '')}".rstrip())
    if request.invocation.name == "write_file":
        path = ROOT / arguments["path"]
        before = path.read_text(errors="replace").splitlines() if path.is_file() else []
        print("\n".join(unified_diff(before, arguments["text"].splitlines(), lineterm="", n=1)))
    answer = input("Allow it? y: yes, a: always, anything else: no, and why not\n> ").strip()
    known = {"y": Decision.ALLOW, "a": Decision.ALWAYS_TOOL}
    return known.get(answer, Decision(False, reason=answer))


async def main(task: str) -> None:
    async with open_session(approver=approve) as session:
        conversation = await session.begin(MODEL, invokers=[read_file, write_file, run_tests])
        print((await conversation.converse(task)).text)


try:
    asyncio.run(main(sys.argv[2]))
except VibeLlmsError as error:
    sys.exit(str(error))
