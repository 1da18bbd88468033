from __future__ import annotations

from pathlib import Path

from lego.images import hostcfg


def test_files_are_merged_and_variables_win(tmp_path):
    first, second = tmp_path / "a.conf", tmp_path / "b.conf"
    first.write_text("[global]\nindex-url = https://one.example/simple\nfind_links = /wheels\n[list]\nformat=json\n")
    second.write_text("[global]\nindex-url = https://two.example/simple\n[install]\ntrusted-host = two.example\n")
    env = {"PIP_FIND_LINKS": "/other", "PIP_NO_COLOR": "1"}
    assert hostcfg.pip_settings(env, [first, second, tmp_path / "none.conf"]) == {
        "index-url": "https://two.example/simple", "find-links": "/other", "trusted-host": "two.example",
    }  # fmt: skip


def test_a_broken_file_is_passed_over(tmp_path):
    bad = tmp_path / "pip.conf"
    bad.write_bytes(b"\xff\xfe no section")
    assert hostcfg.pip_settings({}, [bad]) == {}


def test_pip_reads_the_named_file_last():
    files = hostcfg.pip_files({"HOME": "/h", "PIP_CONFIG_FILE": "/p/pip.conf", "XDG_CONFIG_DIRS": "/x:/y"})
    assert [str(path) for path in files] == [
        "/y/pip/pip.conf",
        "/x/pip/pip.conf",
        "/etc/pip.conf",
        "/h/.pip/pip.conf",
        "/h/.config/pip/pip.conf",
        "/p/pip.conf",
    ]


def test_local_folders_are_lent_and_absent_ones_dropped(tmp_path, monkeypatch):
    index, wheels, constraint = tmp_path / "pypi/simple", tmp_path / "wheels", tmp_path / "c.txt"
    index.mkdir(parents=True)
    wheels.mkdir()
    constraint.write_text("six<2\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    (tmp_path / "pip.conf").write_text(
        f"[global]\nindex-url = https://u:secret@host.example/simple\nextra-index-url = file://{index} file:///gone/simple\n"
        f"find-links = {wheels} /gone\nconstraint = {constraint}\n"
    )
    for name in ("INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS", "CONSTRAINT"):
        monkeypatch.delenv(f"PIP_{name}", raising=False)
    lent = tmp_path / "lent"
    lent.mkdir()
    options = hostcfg.lend(lent)
    assert all(option.startswith("--volume=") and option.endswith(":ro") for option in options)
    mounts = dict(reversed(option.removeprefix("--volume=").removesuffix(":ro").split(":")) for option in options)
    assert mounts[str(index.parent)] == str(index.parent)
    assert mounts[str(wheels)] == str(wheels)
    assert mounts["/run/hostcfg"] == str(lent)
    text = Path(mounts["/etc/pip.conf"]).read_text()
    assert (lent / "constraints-0.txt").read_text() == "six<2\n"
    assert "https://u:secret@host.example/simple" in text and "/run/hostcfg/constraints-0.txt" in text
    assert "gone" not in text


def test_npm_settings_are_lent_without_the_hosts_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".npmrc").write_text("registry=https://npm.example/\ncafile=/host/ca.pem\nprefix=/host\n")
    lent = tmp_path / "lent"
    lent.mkdir()
    assert f"--volume={lent}/npmrc:{hostcfg.BUILD_HOME}/.npmrc:ro" in hostcfg.lend(lent)
    text = (lent / "npmrc").read_text()
    assert "registry=https://npm.example/" in text and "/host/ca" not in text and "prefix" not in text
