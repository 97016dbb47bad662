"""run.json: its schema, where it goes, and that it is there whole or not at all; what a terminal sees."""
import json
import os
import pty
import resource
import select
import signal
import subprocess

import jsonschema
import pytest

from cli_paths import GREENFAST, ROOT
from schemas import validate

QUICK = ["--shapes", "small", "--variants", "cpu.flash", "--device", "cpu"]
# Long enough to be interrupted in the middle on any machine, in steps short enough to stop soon.
LONG = ["--shapes", ",".join(["small", *(f"1x4x{256 + i}x64" for i in range(40))]), "--device", "cpu"]


def environment(**more):
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("GREENFAST_", "USE_")) and k != "NO_COLOR"}
    return {**plain, "TERM": "xterm", **more}


@pytest.mark.parametrize("arguments", [
    ["run", *QUICK, "--iters", "4"],
    ["run", *QUICK, "--iters", "2", "--dtype", "e4m3", "--causal", "--lse", "--hot", "--softcap", "20"],
    ["check", "--shapes", "small", "--variants", "mutant.zeros,mutant.nan_output,mutant.softcap_ignored,cpu.naive"],
    ["check", "--shapes", "1x2x40x16", "--seeds", "3,4", "--policy", "legacy.v2c", "--dtype", "fp16", "--device", "cpu"],
    ["bench", *QUICK, "--iters", "2"],
])
def test_records_follow_the_published_schema(greenfast, arguments):
    result = greenfast(*arguments, "--json")
    record = result.json
    validate(record)
    assert record["exit_code"] == result.code
    assert record["argv"] == [*arguments, "--json"]
    assert len(record["rows"]) == len({(r["variant"], r["problem"]) for r in record["rows"]})
    assert record["policy"]["sha256"] and record["build"]["compiler"] and record["host"]["cpus"] >= 1
    assert greenfast.files() == []  # --json writes nothing unless --out is given


def test_the_schema_refuses_what_is_not_a_record(greenfast):
    record = greenfast("check", *QUICK, "--json").json
    for change in ({"schema": "greenfast.run/2"}, {"status": "perhaps"}, {"rows": [{}]}, {"surprise": 1}):
        with pytest.raises(jsonschema.ValidationError):
            validate({**record, **change}, "run")


def test_the_selftest_of_a_legacy_gate_shows_what_it_lets_through(greenfast):
    result = greenfast("selftest", "--policy", "legacy.stage_c", "--json")
    record = result.json
    validate(record, "selftest")
    assert result.code == 20 and not record["ok"]
    assert record["mutants"] >= 20 and record["honest"] >= 3
    rows = {row["subject"]: row for row in record["rows"]}
    assert not rows["mutant.overrun"]["caught"]  # the originals looked at numbers alone
    assert rows["mutant.zeros"]["caught"]


def test_out_names_the_directory_and_json_can_have_both(greenfast):
    result = greenfast("check", *QUICK, "--json", "--out", "a/b")
    assert result.code == 0
    assert greenfast.files() == ["a", "a/b", "a/b/run.json"]
    assert json.loads((greenfast.work / "a/b/run.json").read_text()) == result.json


def test_an_output_path_that_is_a_file(greenfast):
    greenfast.work.mkdir(exist_ok=True)
    (greenfast.work / "taken").write_text("mine")
    greenfast("check", *QUICK, "--out", "taken").refused(2, "taken", "directory")
    greenfast("check", *QUICK, "--out", "taken/below").refused(2, "taken", "directory")
    (greenfast.work / "results").write_text("mine")
    greenfast("check", *QUICK).refused(2, "results", "directory")
    assert greenfast.files() == ["results", "taken"]
    assert (greenfast.work / "taken").read_text() == "mine"


@pytest.mark.parametrize("out", ["/proc/greenfast", "/sys/greenfast/a"])
def test_a_place_where_nothing_can_be_written(greenfast, out):
    result = greenfast("check", *QUICK, "--out", out)
    assert result.code == 4
    assert out.split("/")[1] in result.err and result.err.strip().count("\n") == result.err.count("GREEN")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_write_permission(greenfast):
    greenfast.work.mkdir(exist_ok=True)
    closed = greenfast.work / "closed"
    closed.mkdir(mode=0o555)
    greenfast("check", *QUICK, "--out", "closed/x").refused(4, "closed", "permission")


def test_a_full_disk_leaves_nothing_half_written(greenfast):
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # noqa: E731
    result = greenfast("check", *QUICK, "--quiet", preexec_fn=limit)
    assert result.code == 4 and "GREEN" in result.out, "what was measured is shown all the same"
    for word in ("cannot write", "run.json", "File too large"):
        assert word in result.err
    assert greenfast.files() == []


def test_a_full_disk_keeps_an_earlier_record(greenfast):
    assert greenfast("check", *QUICK, "--out", "kept").code == 0
    before = (greenfast.work / "kept/run.json").read_text()
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # noqa: E731
    assert greenfast("check", *QUICK, "--out", "kept", preexec_fn=limit).code == 4
    assert greenfast.files() == ["kept", "kept/run.json"]
    assert (greenfast.work / "kept/run.json").read_text() == before


@pytest.mark.parametrize("arguments", [
    ["check", *QUICK], ["bench", *QUICK, "--iters", "2"], ["list", "--names", "colours"], ["selftest", "--policy", "legacy.v2c"],
    ["gate", "--baseline", "cpu.naive", "--candidate", "cpu.naive", "--primary", "1x2x33x16", "--guards", "none", "--seeds", "0",
     "--processes", "1", "--budget", "0.1"]])
def test_a_stderr_that_takes_nothing_changes_no_outcome(tmp_path, arguments):
    codes = []
    for stderr in (subprocess.PIPE, open("/dev/full", "w")):
        codes.append(subprocess.run([GREENFAST, *arguments], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=stderr,
                                    check=False).returncode)
    assert codes[0] == codes[1] and codes[0] in (0, 2, 10, 20)


def test_an_interrupted_gate_says_how_to_go_on(tmp_path):
    command = [GREENFAST, "gate", "--baseline", "cpu.naive", "--candidate", "cpu.flash", "--primary", "1x4x256x64", "--guards", "none",
               "--budget", "6"]
    running = subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    running.stderr.readline()  # a step has ended
    running.send_signal(signal.SIGINT)
    err = running.communicate(timeout=120)[1]
    assert running.returncode == 130
    folder = next((tmp_path / "results").glob("*-gate"))
    assert f"greenfast gate --resume results/{folder.name} goes on" in err
    again = subprocess.run([GREENFAST, "gate", "--resume", folder], env=environment(), capture_output=True, text=True, check=False)
    assert again.returncode in (0, 10) and "taken from the checkpoint" in again.stderr


RESUMED = ["--shapes", ",".join(["small", *(f"1x4x{256 + i}x64" for i in range(3))]), "--variants", "cpu.naive,cpu.flash"]


def interrupted(cwd, command):
    """Runs it and interrupts it once a shape is done; its lines on stderr."""
    cwd.mkdir(exist_ok=True)
    process = subprocess.Popen([GREENFAST, *command], cwd=cwd, env=environment(), text=True, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE)
    for _ in range(3):  # both variants on the first shape, and one on the second
        assert process.stderr.readline().startswith("GREEN")
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=120)[1]
    assert process.returncode == 130
    return err


@pytest.mark.parametrize("command", [["check", *RESUMED], ["run", *RESUMED, "--iters", "2"]])
def test_an_interrupted_run_goes_on(greenfast, command):
    command = [*command, "--out", "out"]
    assert "the same command with --resume out goes on after it" in interrupted(greenfast.work, command)
    file = greenfast.work / "out/run.json"
    first = json.loads(file.read_text())
    done = first["resume"]["finished"]
    assert done[:1] == ["small"] and len(done) < 4

    result = greenfast(*command, "--resume", "out", "--json")
    assert result.code == 0, result.err
    record = result.json
    validate(record)
    assert json.loads(file.read_text()) == record
    assert record["status"] == "complete" and record["argv"] == command
    assert [part["run_id"] for part in record["earlier"]] == [first["run_id"]]
    # As if it had not been interrupted: every variant on every shape once, with all of its cases.
    whole = greenfast(*command[:-2], "--json").json
    for rows in ("rows", "cases"):
        assert [(row["variant"], row["problem"]) for row in record[rows]] == [(row["variant"], row["problem"]) for row in whole[rows]]
    assert len(record["plans"]) == len(whole["plans"]) and len(record["peaks"]) == len(whole["peaks"])
    assert [shape["name"] for shape in record["samples"]["shapes"]] == [shape["name"] for shape in whole["samples"]["shapes"]]
    # What was done before stands as it was.
    assert record["cases"][:2] == first["cases"][:2]
    assert record["rows"][0]["time"] == first["rows"][0]["time"]
    # And it is done now.
    greenfast(*command, "--resume", "out", "--json").refused(2, "holds no interrupted run")


def test_what_goes_on_is_the_same_run(greenfast):
    command = ["check", *RESUMED, "--out", "out"]
    interrupted(greenfast.work, command)
    file = greenfast.work / "out/run.json"
    record = json.loads(file.read_text())
    greenfast(*command, "--seeds", "1", "--resume", "out").refused(2, "was begun as greenfast check")
    greenfast(*command, "--resume", "elsewhere").refused(2, "elsewhere/run.json")
    greenfast(*command, "--inputs", "q.npy", "--resume", "out").refused(2, "--resume with --inputs")
    for change, words in [({"build": {**record["build"], "version": "0.0.0"}}, "another build of greenfast"),
                          ({"device": {**record["device"], "name": "another"}}, "another device"),
                          ({"policy": {**record["policy"], "sha256": "0" * 64}}, "another policy"),
                          ({"resume": {**record["resume"], "plugins_sha256": "0" * 64}}, "another plugin"),
                          ({"rows": [{"problem": "small"}]}, "no record of an interrupted run"),
                          ({"schema": "greenfast.run/2"}, "schema")]:
        file.write_text(json.dumps({**record, **change}))
        greenfast(*command, "--resume", "out").refused(2, words)
    # A wrong row of before decides the exit code of the whole.
    record["rows"][0].update({"verdict": "RED", "exit_code": 20, "reason": "planted"})
    file.write_text(json.dumps(record))
    result = greenfast(*command, "--resume", "out", "--quiet")
    assert result.code == 20 and "planted" in result.out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_writes_a_valid_record_that_says_so(tmp_path, number):
    process = subprocess.Popen([GREENFAST, "run", *LONG, "--out", "out"], cwd=tmp_path, env=environment(), text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    first = process.stderr.readline()  # one variant on one problem is decided
    assert first.startswith("GREEN")
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "interrupted; out/run.json holds what was finished" in err
    assert "Interrupted" in out
    assert "stopping after this step" in err
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    validate(record)
    assert record["status"] == "interrupted"
    assert record["exit_code"] == 130
    assert 0 < len(record["cases"])
    assert len(record["rows"]) < 2 * len(record["problems"])
    cases = max(row["cases"] for row in record["rows"])  # every shape has as many
    assert all(row["cases"] == cases for row in record["rows"] if row["verdict"] == "GREEN")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["out", "run.json"]


def test_a_crash_is_exit_24_and_says_what_was_running(greenfast, tmp_path):
    if greenfast("doctor", "--json").json["build"]["sanitize"]:
        pytest.skip("sanitizers report crashes themselves")
    process = subprocess.Popen([GREENFAST, "run", *LONG], cwd=tmp_path, env=environment(), text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stderr.readline()
    process.send_signal(signal.SIGSEGV)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 24
    assert err.splitlines()[-1].startswith("greenfast: crash (SIGSEGV) in ")
    assert greenfast.files() == [] and not list(tmp_path.glob("*.json"))


def test_a_killed_run_leaves_nothing(tmp_path):
    process = subprocess.Popen([GREENFAST, "run", *LONG, "--out", "out"], cwd=tmp_path, env=environment(),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stderr.readline()
    process.kill()
    process.communicate()
    assert list(tmp_path.rglob("*")) == []


def on_a_terminal(arguments, cwd, **env):
    """What the command prints when standard output and error are a terminal."""
    leader, follower = pty.openpty()
    process = subprocess.Popen([GREENFAST, *arguments], cwd=cwd, env=environment(**env), stdout=follower, stderr=follower)
    os.close(follower)
    seen = b""
    while True:
        ready, _, _ = select.select([leader], [], [], 120)
        try:
            data = os.read(leader, 65536) if ready else b""
        except OSError:  # the other end is closed
            break
        if not data:
            break
        seen += data
    os.close(leader)
    return process.wait(), seen.decode()


def test_a_terminal_gets_colour_and_one_progress_line(tmp_path):
    code, text = on_a_terminal(["check", *QUICK], tmp_path)
    assert code == 0
    assert "\033[32mGREEN\033[0m" in text
    assert "\r[1/" in text  # overwrites itself
    assert "\n[" not in text


def test_no_color_is_honoured_and_the_table_is_the_same(tmp_path):
    _, colored = on_a_terminal(["check", *QUICK], tmp_path)
    _, plain = on_a_terminal(["check", *QUICK], tmp_path, NO_COLOR="1")
    assert "\033" not in plain
    table = lambda text: [line for line in text.replace("\033[32m", "").replace("\033[0m", "").splitlines() if "cpu.flash " in line][-1]  # noqa: E731, E501
    assert table(plain).split("\r")[-1] == table(colored).split("\r")[-1]


def test_a_dumb_terminal_gets_plain_lines(tmp_path):
    _, text = on_a_terminal(["check", *QUICK], tmp_path, TERM="dumb")
    assert "\033" not in text
    assert "\r[" not in text
    assert "GREEN cpu.flash on small" in text


def test_elsewhere_progress_is_plain_lines_on_stderr(greenfast):
    result = greenfast("check", *QUICK)
    assert "\r" not in result.out + result.err and "\033" not in result.out + result.err
    assert result.err.startswith("GREEN cpu.flash on small, ")
    assert greenfast("check", *QUICK, "--quiet").err == ""
