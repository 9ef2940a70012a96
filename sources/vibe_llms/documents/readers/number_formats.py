"""Number formats of spreadsheets, such as `0.0%`: the kind of a number, and its display.

Units, currencies, percentages, dates, and leading zeros follow the format. Digits do not: a number
keeps those that the format would round away, because a reader may calculate.
"""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from functools import lru_cache

from msgspec import Struct

#: Formats that a file names only by number. Source: ECMA-376, part 1, 18.8.30. The currency formats
#: 5 to 8 and 41 to 44 are omitted, because they depend on the country of the program.
BUILT_IN = {
    1: "0",
    2: "0.00",
    3: "#,##0",
    4: "#,##0.00",
    9: "0%",
    10: "0.00%",
    14: "yyyy-mm-dd",
    15: "d-mmm-yy",
    16: "d-mmm",
    17: "mmm-yy",
    18: "h:mm AM/PM",
    19: "h:mm:ss AM/PM",
    20: "h:mm",
    21: "h:mm:ss",
    22: "yyyy-mm-dd h:mm",
    45: "mm:ss",
    46: "[h]:mm:ss",
    47: "mm:ss.0",
    **dict.fromkeys((*range(27, 32), 36, *range(50, 55), 57, 58), "yyyy-mm-dd"),
    **dict.fromkeys((32, 33, 34, 35, 55, 56), "h:mm:ss"),
}
#: Tokens of a format: quoted and escaped text, room, fillings, brackets, digits, and the rest.
_TOKEN = re.compile(
    r'"(?P<quoted>[^"]*)"?|\\(?P<escaped>.)|[_*].?|\[(?P<bracket>[^\]]*)\]?'
    r"|(?P<general>General)|(?P<noon>AM/PM|A/P|上午/下午)|(?P<digits>[0#?][0#?.,]*|\.[0#?]+)"
    r"|(?P<exponent>[eE][+-])|(?P<other>.)",
    re.IGNORECASE | re.DOTALL,
)
_DATE_LETTERS = frozenset("ymdhsg年月日时時分秒")
#: Digits above which a number is written with an exponent.
_MOST_DIGITS = 21
#: Excel counts 1900 as a leap year, so its days before March 1900 begin one day later.
_LEAP_DAY = 60
_SINCE_1900 = dt.datetime(1899, 12, 30)  # noqa: DTZ001  (a spreadsheet knows no time zones)
_SINCE_1904 = dt.datetime(1904, 1, 1)  # noqa: DTZ001
_SECONDS = 86_400


class NumberFormat(Struct, frozen=True):
    """Display of a number: the text around it, and its kind.

    `decimals` counts the zeros after the point. `digits` counts those of a format like `000`.
    """

    prefix: str = ""
    suffix: str = ""
    percent: bool = False
    grouped: bool = False
    decimals: int = 0
    digits: int = 0
    date: bool = False
    time: bool = False
    elapsed: bool = False

    def show(self, value: float, *, since_1904: bool = False) -> str:
        """Return a number as text.

        >>> parse_format("0.0%").show(0.125), parse_format('#,##0.00 "€"').show(-1234.5)
        ('12.5%', '-1,234.50 €')
        """
        if self.date or self.time or self.elapsed:
            return self._show_time(value, since_1904=since_1904)
        if self.digits > 1 and value.is_integer() and 0 <= value < 10**_MOST_DIGITS:
            return f"{self.prefix}{int(value):0{self.digits}d}{self.suffix}"
        if not (self.percent or self.prefix or self.suffix):
            return write_number(value)
        amount = Decimal(repr(value)) * (100 if self.percent else 1)
        sign, amount = "-" if amount < 0 else "", abs(amount)
        if amount >= 10**_MOST_DIGITS:
            return write_number(value)
        # A small share keeps three digits.
        places = max(self.decimals, 2, 2 - amount.adjusted() if 0 < amount < 1 else 0)
        whole, _, rest = f"{amount:.{min(places, _MOST_DIGITS)}f}".partition(".")
        rest = rest[: self.decimals] + rest[self.decimals :].rstrip("0")
        number = f"{int(whole):,}" if self.grouped else whole
        return f"{sign}{self.prefix}{number}{'.' if rest else ''}{rest}{self.suffix}"

    def _show_time(self, value: float, *, since_1904: bool) -> str:
        try:
            # Excel keeps times to the millisecond, as fractions of a day.
            seconds = round(value * _SECONDS * 1000) / 1000
            if self.elapsed:
                whole = int(abs(seconds))
                text = f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
                return f"-{text}" if seconds < 0 else text
            if value < 0:
                return write_number(value)
            if not self.date and value < 1:
                return str((_SINCE_1900 + dt.timedelta(seconds=round(seconds))).time())
            start = _SINCE_1904 if since_1904 else _SINCE_1900
            if not since_1904 and value < _LEAP_DAY:
                start += dt.timedelta(days=1)
            moment = start + dt.timedelta(seconds=round(seconds))
        except (OverflowError, ValueError):
            return write_number(value)
        return show_moment(moment)


def show_moment(moment: dt.datetime) -> str:
    """Return a date as text, with its time unless that is midnight."""
    if moment.time() == dt.time():
        return moment.date().isoformat()
    return moment.isoformat(" ", "seconds")


def write_number(value: float) -> str:
    """Return a number as text: all digits of an integer, else the 15 that Excel shows.

    >>> write_number(1234567890123456.0), write_number(0.1 + 0.2), write_number(3.0)
    ('1234567890123456', '0.3', '3')
    """
    if value.is_integer():
        return f"{Decimal(repr(value)):f}".removesuffix(".0") if abs(value) < 1e21 else repr(value)
    return f"{value:.15g}"


@lru_cache(maxsize=1000)
def parse_format(code: str) -> NumberFormat:
    """Return the parsed format, or a plain one for conditions, fractions, and exponents.

    Only its first section counts, which is for positive numbers.
    """
    around = ["", ""]
    bare, letters = "", ""
    digits: str | None = None
    percent = elapsed = False
    clock: object = False
    for token in _TOKEN.finditer(code):
        kind, text = token.lastgroup, token[token.lastgroup] if token.lastgroup else ""
        side = digits is not None
        match kind:
            case "quoted" | "escaped":
                around[side] += text
            case "bracket" if text[:1] == "$":
                around[side] += text[1:].partition("-")[0]
            case "bracket" if text[:1] in ("<", ">", "="):
                return NumberFormat()
            case "bracket" if text and set(text.lower()) <= set("hms"):
                elapsed = True
            case "noon":
                clock = True
            case "digits" | "general":
                if digits is not None:
                    bare = "#"
                digits = text if kind == "digits" else ""
            case "exponent":
                bare = "#"
            case "other" if text == ";":
                break
            case "other":
                percent = percent or text == "%"
                letters += text.lower()
                around[side] += text
            case _:
                pass
    # A point and zeros are part of the seconds.
    clock = clock or (_DATE_LETTERS & set(letters) and (digits or ".").startswith("."))
    if elapsed or clock:
        return _describe_time(letters, elapsed=elapsed)
    if digits is None or bare or digits.endswith(",") or set(letters) & {"/", "@", "#", "?"}:
        return NumberFormat()
    whole, _, rest = digits.partition(".")
    prefix, suffix = around
    named = bool((prefix + suffix).strip())
    return NumberFormat(
        prefix=prefix.lstrip() if named else "",
        suffix=suffix.rstrip() if named else "",
        percent=percent,
        grouped="," in whole,
        decimals=rest.count("0"),
        digits=len(digits) if set(digits) == {"0"} else 0,
    )


def _describe_time(letters: str, *, elapsed: bool) -> NumberFormat:
    time = bool(set("hs时時分秒") & set(letters))
    date = bool(set("yd年月日g") & set(letters)) or not (time or elapsed)
    return NumberFormat(date=date, time=time, elapsed=elapsed and not date)
