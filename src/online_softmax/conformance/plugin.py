"""The kit as a pytest plugin: `pytest --online-softmax-subject=package.module:callable
--online-softmax-op=softmax`.

Every case becomes an item, beside the tests that pytest finds by itself. Every pytest run of everyone who has
the package installed loads this module: it imports nothing but pytest until the option is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .cases import Case
    from .results import Result
    from .run import Runner

_SUBJECT = "--online-softmax-subject"
_OPTIONS = {
    _SUBJECT: ("TARGET", "put the kit's cases to package.module:callable, or to ours, torch, jax ..."),
    "--online-softmax-op": ("OP", "what the callable computes; of a library, the operation to check"),
    "--online-softmax-framework": ("NAME", "whose arrays the callable takes: numpy (default), torch or jax"),
    "--online-softmax-known": ("FILE", "known failures: a case a line, # and why"),
    "--online-softmax-timeout": ("SECONDS", "seconds for an input of a case (20)"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options; all begin with --online-softmax."""
    group = parser.getgroup("online-softmax", "cases for a softmax, a loss or an attention")
    for name, (metavar, text) in _OPTIONS.items():
        group.addoption(name, metavar=metavar, default=None, help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Read what the options name, where a subject is given. UsageError for what is wrong with them."""
    given = {name: config.getoption(name) for name in _OPTIONS}
    if given[_SUBJECT] is not None:
        config.pluginmanager.register(_Plugin(*_prepared(given)), "online-softmax-cases")
        return
    for name, value in given.items():
        if value is not None:
            raise pytest.UsageError(f"{name}: is of no effect without {_SUBJECT}")


def _prepared(given: dict[str, str | None]) -> tuple[list[Case], Runner]:
    from . import known
    from .cases import load_cases
    from .run import Runner
    from .subjects import parse

    op, listed = given["--online-softmax-op"], given["--online-softmax-known"]
    try:
        subject = parse(str(given[_SUBJECT]), op, given["--online-softmax-framework"])
        everything = load_cases()
        runner = Runner(
            subject,
            timeout=_seconds(given["--online-softmax-timeout"]),
            known=None if listed is None else known.read(listed, everything),
        )
        cases = [case for case in load_cases(op=op) if "huge" not in case.tags]
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    return cases, runner


def _seconds(text: str | None) -> float:
    try:
        return 20.0 if text is None else float(text)
    except ValueError:
        problem = f"--online-softmax-timeout: {text!r}: a positive number of seconds would do"
        raise pytest.UsageError(problem) from None


class _Plugin:
    """Adds the cases to what was collected."""

    def __init__(self, cases: list[Case], runner: Runner) -> None:
        self._cases = cases
        self._runner = runner

    @pytest.hookimpl(tryfirst=True)  # so that -k and others choose among the cases too
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        kit = Kit.from_parent(session, name="online-softmax", nodeid="online-softmax")
        kit.cases, kit.runner = self._cases, self._runner
        report = kit.ihook.pytest_make_collect_report(collector=kit)
        kit.ihook.pytest_collectreport(report=report)  # so that they are counted as collected
        items.extend(report.result)

    def pytest_unconfigure(self) -> None:
        self._runner.close()


class Kit(pytest.Collector):
    """All cases; the subject lives from the first to the last of them."""

    cases: list[Case]
    runner: Runner

    def collect(self) -> Iterator[CaseItem]:
        """An item a case."""
        for case in self.cases:
            yield CaseItem.from_parent(self, name=case.instance, case=case)

    def setup(self) -> None:
        """Load the subject; ends the whole run of pytest where that cannot be done."""
        from .child import SubjectError

        try:
            self.runner.start()
        except SubjectError as error:
            pytest.exit(f"{_SUBJECT}: {error}", returncode=pytest.ExitCode.USAGE_ERROR)

    def teardown(self) -> None:
        """End the subject's process."""
        self.runner.close()


class CaseFailed(Exception):
    """A case that failed, or passed though it is listed as failing."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.problem)
        self.result = result


class CaseItem(pytest.Item):
    """One case. `-k` finds it by its name, its operation, its format and its tags."""

    def __init__(self, *, case: Case, **more: Any) -> None:
        super().__init__(**more)
        self.case = case
        self.extra_keyword_matches.update((case.op, case.dtype, *case.tags))

    def runtest(self) -> None:
        """Put the case to the subject."""
        from .child import SubjectError

        assert isinstance(self.parent, Kit)
        try:
            result = self.parent.runner.check(self.case)
        except SubjectError as error:
            pytest.exit(f"{_SUBJECT}: {error}", returncode=pytest.ExitCode.USAGE_ERROR)
        if result.recorded:
            self.user_properties.append(("recorded", result.recorded))
        if result.status == "not offered":
            pytest.skip(f"not offered: {result.problem}")
        if result.status == "known":
            pytest.xfail(result.listed)  # with --runxfail it comes back
        if result.status not in ("pass", "recorded"):
            raise CaseFailed(result)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The smallest input, what came and what is right; no traceback."""
        if isinstance(excinfo.value, CaseFailed):
            from .report import failure_text

            return failure_text(excinfo.value.result)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """Where it is said to be: there is no file."""
        return self.path, None, self.name
