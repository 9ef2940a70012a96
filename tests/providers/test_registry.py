"""What the code behind a row raises: an error that names the row, but for a cancel of ours."""

from __future__ import annotations

import asyncio

import pytest

from vibe_llms.base.exceptions import RateLimited, RegistrationError
from vibe_llms.base.registries import Row
from vibe_llms.providers.registry import guard_row

ROW = Row("mine", "plug", "", {}, "config.toml")


@pytest.mark.parametrize(
    "error",
    [ValueError("odd"), SystemExit(3), BaseException("deep"), asyncio.CancelledError("early")],
)
def test_what_a_module_raises_names_its_row(error: BaseException) -> None:
    with pytest.raises(RegistrationError, match="'plug' failed: ") as caught, guard_row(ROW):
        raise error
    assert (caught.value.table, caught.value.file) == ("providers.mine", "config.toml")
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    "error", [RateLimited("slowly", provider="mine"), KeyboardInterrupt(), GeneratorExit()]
)
def test_what_is_an_error_of_ours_or_a_person_stays_what_it_is(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, guard_row(ROW):
        raise error
    assert caught.value is error


async def test_a_cancel_of_ours_is_one_and_a_modules_own_is_an_error() -> None:
    with pytest.raises(RegistrationError), guard_row(ROW):
        raise asyncio.CancelledError

    async def work() -> None:
        with guard_row(ROW):
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
