"""Local jobs: detached, identified beyond their number, ended with nothing left, and how they ended is written down."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest
from pydantic import TypeAdapter

from cluster import (
    ClusterDeadlineError,
    ClusterUsageError,
    JobError,
    JobHandle,
    JobSpec,
    JobStatus,
    cancel,
    logs,
    status,
    submit,
    wait,
)
from cluster.process_identity import identity, is_alive, parse_stat

LIMIT_S = 60.0


def python(code: str, folder: Path, **more: object) -> JobSpec:
    return JobSpec(argv=(sys.executable, "-c", code), name="job", folder=str(folder), **more)  # type: ignore[arg-type]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def said(handle: JobHandle, text: str) -> bool:
    return text in logs(handle).text


def marked(mark: str) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("JOB_MARK") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def test_output_exit_code_files_and_environment(tmp_path: Path) -> None:
    source = tmp_path / "input.txt"
    source.write_text("from a file")
    code = (
        "import os,sys; print(open('in/x.txt').read(), os.environ['WORD']); print('oops', file=sys.stderr); sys.exit(3)"
    )
    handle = submit(python(code, tmp_path / "jobs", files={"in/x.txt": str(source)}, environment={"WORD": "hello"}))
    assert wait(handle, LIMIT_S) == JobStatus("failed", 3)
    text = logs(handle).text
    assert "from a file hello" in text
    assert "oops" in text
    assert Path(handle.log_path).parent.parent == tmp_path / "jobs"


def test_success_and_the_folder_it_works_in(tmp_path: Path) -> None:
    handle = submit(python("import os; print(os.getcwd())", tmp_path / "jobs", cwd=str(tmp_path)))
    assert wait(handle, LIMIT_S) == JobStatus("succeeded", 0)
    assert logs(handle).text == f"{tmp_path}\n"


@pytest.mark.slow
def test_a_job_outlives_the_process_that_submitted_it(tmp_path: Path) -> None:
    submitter = f"""
import json, sys
from dataclasses import asdict
from cluster import JobSpec, submit
code = "import time, os; print('up', flush=True); time.sleep(1); print('done')"
handle = submit(JobSpec(argv=(sys.executable, "-c", code), name="job", folder={str(tmp_path)!r}))
print(json.dumps(asdict(handle)), flush=True)
import os, signal
os.killpg(0, signal.SIGKILL)  # the whole terminal goes
"""
    run = subprocess.run([sys.executable, "-c", submitter], capture_output=True, text=True, start_new_session=True)
    assert run.returncode == -signal.SIGKILL
    handle = TypeAdapter(JobHandle).validate_json(run.stdout)
    assert status(handle) == JobStatus("running")
    assert wait(handle, LIMIT_S) == JobStatus("succeeded", 0)
    assert logs(handle).text == "up\ndone\n"


def test_a_handle_goes_through_json(tmp_path: Path) -> None:
    handle = submit(python("pass", tmp_path))
    assert JobHandle(**json.loads(json.dumps(asdict(handle)))) == handle
    wait(handle, LIMIT_S)


def test_cancel_lets_the_job_close_what_it_started(tmp_path: Path) -> None:
    """SIGTERM reaches the job's process only: its children are its own to stop."""
    code = """
import signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import signal,time; signal.signal(15, lambda *_: print('CHILD HIT', flush=True)); time.sleep(1000)"])
def stop(*_):
    time.sleep(0.3); child.kill(); child.wait(); print("closed", flush=True); sys.exit(130)
signal.signal(signal.SIGTERM, stop)
print("up", flush=True)
time.sleep(1000)
"""  # noqa: E501  # one line of a program in a program
    handle = submit(python(code, tmp_path))
    until(lambda: said(handle, "up"))
    assert cancel(handle, grace_s=LIMIT_S) == JobStatus("cancelled", 130)
    assert logs(handle).text == "up\nclosed\n"


def test_cancel_kills_what_does_not_listen_and_all_below_it(tmp_path: Path) -> None:
    mark = f"cancel-{os.getpid()}-{time.monotonic_ns()}"
    code = """
import signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "1000"])
subprocess.Popen(["sleep", "1000"], start_new_session=True)
subprocess.run(["sh", "-c", "setsid sleep 1000 &"])
print("up", flush=True)
time.sleep(1000)
"""
    handle = submit(python(code, tmp_path, environment={"JOB_MARK": mark}))
    until(lambda: said(handle, "up"))
    assert len(marked(mark)) >= 4
    assert cancel(handle, grace_s=0.3) == JobStatus("cancelled", -signal.SIGKILL)
    until(lambda: not marked(mark))


def test_a_stopped_job_is_cancelled_too(tmp_path: Path) -> None:
    handle = submit(python("import time; print('up', flush=True); time.sleep(1000)", tmp_path))
    until(lambda: said(handle, "up"))
    os.kill(handle.child_pid, signal.SIGSTOP)
    assert cancel(handle, grace_s=0.3) == JobStatus("cancelled", -signal.SIGKILL)


def test_a_job_that_ends_leaves_nothing_running(tmp_path: Path) -> None:
    mark = f"sweep-{os.getpid()}-{time.monotonic_ns()}"
    code = "import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True)"
    handle = submit(python(code, tmp_path, environment={"JOB_MARK": mark}))
    assert wait(handle, LIMIT_S) == JobStatus("succeeded", 0)
    until(lambda: not marked(mark))


@pytest.mark.skipif(sys.platform != "linux", reason="needs the parent-death signal")
def test_a_job_whose_runner_was_killed_ends_and_is_lost(tmp_path: Path) -> None:
    handle = submit(python("import time; time.sleep(1000)", tmp_path))
    os.kill(handle.pid, signal.SIGKILL)
    until(lambda: status(handle) == JobStatus("lost"))
    assert not is_alive(handle.child_pid, handle.child_identity)
    assert cancel(handle) == JobStatus("lost")


def test_a_job_killed_from_outside_has_failed_with_the_signal(tmp_path: Path) -> None:
    handle = submit(python("import time; time.sleep(1000)", tmp_path))
    os.kill(handle.child_pid, signal.SIGKILL)
    assert wait(handle, LIMIT_S) == JobStatus("failed", -signal.SIGKILL)


def test_a_number_that_belongs_to_somebody_else_now_is_never_signalled(tmp_path: Path) -> None:
    handle = submit(python("pass", tmp_path))
    wait(handle, LIMIT_S)
    stranger = subprocess.Popen(["sleep", "1000"])
    try:
        (Path(handle.folder) / "exit.json").unlink()
        reused = replace(handle, pid=stranger.pid, child_pid=stranger.pid)
        assert status(reused) == JobStatus("lost")
        assert cancel(reused, grace_s=0.1) == JobStatus("lost")
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_program_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"can't be started \(.*No such file or directory: '/nope'\)"):
        submit(JobSpec(argv=("/nope",), name="job", folder=str(tmp_path)))


def test_a_working_directory_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="No such file or directory: '/nowhere'"):
        submit(python("pass", tmp_path, cwd="/nowhere"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"argv": ()}, "argv is empty"),
        ({"backend": "yarn"}, "there is: local"),
        ({"name": "a/b"}, "name"),
        ({"files": {"x": "/nope"}}, "not there"),
        ({"files": {"../x": __file__}}, "outside"),
    ],
)
def test_a_spec_that_cannot_run_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    with pytest.raises(ClusterUsageError, match=message):
        submit(replace(python("pass", tmp_path), **change))  # type: ignore[arg-type]  # whatever the table says
    assert not list(tmp_path.iterdir())


def test_waits_end(tmp_path: Path) -> None:
    handle = submit(python("import time; time.sleep(1000)", tmp_path))
    with pytest.raises(ClusterDeadlineError, match=r"within 0\.1 s"):
        wait(handle, 0.1)
    cancel(handle, grace_s=5)


def test_logs_are_read_piece_by_piece(tmp_path: Path) -> None:
    handle = submit(python("print('0123456789' * 3)", tmp_path))
    wait(handle, LIMIT_S)
    first = logs(handle, max_bytes=12)
    assert first.text == "012345678901"
    assert logs(handle, offset=first.next_offset).text == "234567890123456789\n"
    assert logs(handle, offset=-3).text == "89\n"
    assert logs(handle, offset=10_000).text == ""


def test_another_host_is_told_where_to_look(tmp_path: Path) -> None:
    handle = replace(submit(python("pass", tmp_path)), host="elsewhere")
    for look in (status, logs, cancel):
        with pytest.raises(JobError, match="elsewhere"):
            look(handle)


def test_identity_is_of_the_process_and_gone_with_it() -> None:
    process = subprocess.Popen(["sleep", "1000"])
    known = identity(process.pid)
    assert known is not None
    assert is_alive(process.pid, known)
    assert identity(process.pid) == known
    process.kill()
    until(lambda: not is_alive(process.pid, known))  # also while it is a zombie
    process.wait()
    assert identity(process.pid) is None


def test_names_with_spaces_and_brackets_do_not_confuse_the_parser() -> None:
    fields = " ".join(str(number) for number in range(4, 30))
    assert parse_stat(f"77 (a ) R (b) S {fields}\n") == ("S", 22)
