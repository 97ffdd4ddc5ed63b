"""Pages that a reader follows from top to bottom, followed: their commands, and what they show."""

import itertools
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from e2e.corridor import START_SECONDS, quiet_port
from tests.docs.pages import PAGES

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PORTS = ("8001", "8002", "8080", "9090")
"""What the pages say; a test takes ports that are free."""
MARK = "======"
PRELUDE = """set -eu
epp() {
  case $1 in
    up) exec epp up --port 8080 "${@:2}" ;;
    *) command epp "$@" --url http://127.0.0.1:9090 ;;
  esac
}
"""
"""`epp up` is put into the background, where `exec` makes it the job itself."""


def followed(fences, folder):
    """Run the shell's fences in a folder, one after the other; give what each prints."""
    script = PRELUDE + "".join(f"{text}\necho {MARK}\n" for text in fences)
    for port in PORTS:
        script = re.sub(rf"\b{port}\b", str(quiet_port()), script)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shell = subprocess.Popen(
        ["/bin/bash", "-c", script],
        cwd=folder,
        env=os.environ | {"PATH": path},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = shell.communicate(timeout=4 * START_SECONDS)
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.communicate()
    assert shell.returncode == 0, printed
    return printed.split(f"{MARK}\n")[:-1]


def alike(text):
    """What is printed, whatever the numbers, times and ids, and however wide the columns."""
    without_ids = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", text)
    return re.sub(r"[-+.:T\d]*\d", "0", re.sub(r" +", " ", without_ids)).strip()


def test_the_tutorial_does_what_it_shows(tmp_path):
    fences = FENCE.findall(PAGES["docs/tutorial.md"])
    (install, *steps) = [text for language, text in fences if language == "sh"]
    assert "pip install" in install
    printed = followed(steps, tmp_path)
    shown = dict.fromkeys(range(len(steps)), "")
    for (_, text), (language, after) in itertools.pairwise(fences):
        if not language:
            shown[steps.index(text)] = after
    assert [alike(each) for each in printed] == [alike(each) for each in shown.values()]
    first, second = [
        (who, int(cached) / int(prompt))
        for who, prompt, cached in re.findall(
            r'x-sim-name: (\S+)\n"prompt_tokens":(\d+)\n"cached_tokens":(\d+)', "".join(printed)
        )
    ]
    assert first[0] == second[0]
    assert first[1] == 0
    assert second[1] > 0.9


def test_past_capacity_requests_wait_and_are_answered(tmp_path):
    section = PAGES["docs/overload.md"].partition("\n## See it\n")[2].partition("\n## ")[0]
    (script,) = [text for language, text in FENCE.findall(section) if language == "sh"]
    ends = "wait $(jobs -p | tail -n +4)\nkill $(jobs -p | head -3)\nwait\n"
    printed, answers = followed([script, ends], tmp_path)
    (waiting,) = re.findall(r"^warmpick_flow_waiting_requests\{.*?\} (\d+)", printed, re.MULTILINE)
    assert int(waiting) > 20
    assert len(re.findall(r"^200 after", printed + answers, re.MULTILINE)) == 40
