"""Formulas as learners write them: `s*exp(m - M) + exp(x - M)`, parsed into a small tree.

    formula     [name =] condition
    condition   alternative {or alternative};  alternative: negation {and negation};  negation: [not] relation
    relation    sum [< <= > >= == != sum]
    sum         product {+ - product}
    product     signed {* / signed | primary}          a missing sign between two factors is a product
    signed      {+ -} power
    power       primary [^ signed]                     ^ or **, grouped to the right
    primary     number | name | inf | function(sum, ...) | ln primary | (condition)

Functions: exp, log or ln, log2, sqrt, abs, max, min, where or if (condition, then, else), isinf, isfinite,
isnan. `e^x` is exp(x) where e is no variable. Nothing of a formula is ever evaluated by Python: `FUNCTIONS`
is all there is to call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from .tokens import FormulaError, Token, tokens

#: Brackets, signs, powers and functions within each other.
MAX_DEPTH: Final = 40
#: Function -> the least and the most arguments it takes.
FUNCTIONS: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {
        "exp": (1, 1), "log": (1, 1), "log2": (1, 1), "sqrt": (1, 1), "abs": (1, 1), "ceil": (1, 1),
        "floor": (1, 1), "max": (2, 8), "min": (2, 8), "where": (3, 3), "isinf": (1, 1),
        "isfinite": (1, 1), "isnan": (1, 1),
    }
)  # fmt: skip
_SPELLINGS: Final = {
    "ln": "log", "if": "where", "maximum": "max", "minimum": "min", "is_inf": "isinf", "ceiling": "ceil",
    "lb": "log2",
}  # fmt: skip
_INFINITY: Final = ("inf", "oo", "infinity", "infty")
#: What may be added to a name to say that it is the new one, or the one of both parts: S' and s_{k+1}.
_NEWER: Final = ("", "k+1", "kplus1", "n+1", "i+1", "j+1", "t+1", "new", "next", "ab", "abc", "max", "total")
_WORDS: Final = ("and", "or", "not")
_RELATIONS: Final = ("<", "<=", ">", ">=", "==", "!=", "=")
#: Functions that may stand without brackets: `ln 2`.
_TELLING: Final = "a case is written where(condition, a, b): a where the condition holds, else b"
_BARE: Final = ("log", "log2", "exp", "sqrt")


@dataclass(frozen=True)
class Node:
    """What a formula is made of. `op`: "number" (value in `number`), "name" (its `name`), "inf", or an
    operation on `parts`: + - * / ^ neg, a relation, and, or, not, a function of `FUNCTIONS`."""

    op: str
    parts: tuple[Node, ...] = ()
    number: Fraction = Fraction(0)
    name: str = ""


def parse(
    text: str, variables: Mapping[str, str] | None = None, *, name: str | None = None, logic: bool = False
) -> Node:
    """The tree of a formula.

    Args:
        variables: spelling -> the variable it stands for; `{"m_k": "m", "m": "m"}`. None: no variables.
        name: what the formula defines: "S" lets `S = ...` pass, and `s_{k+1} = ...`, `S' = ...` and the like;
            another name in front is an error, unless it is a variable.
        logic: whether the result may be a condition.

    A full stop or semicolon at the end is passed over. Raises FormulaError, with the place in the text, for
    anything that is no formula in these variables. Cost: linear in the text, which is at most
    `tokens.MAX_LENGTH` long.
    """
    ended = text.rstrip()
    parser = _Parser(ended[:-1] if ended.endswith((".", ";")) else text, variables or {})
    parser.skip_definition(name)
    node = parser.condition()
    parser.finish()
    if is_logic(node) and not logic:
        raise FormulaError(
            "this is a condition: a formula with a value would do, as where(m == 0, 1, m)", text, 0
        )
    return node


def is_logic(node: Node) -> bool:
    """Whether the value is true or false."""
    return node.op in (*_RELATIONS, *_WORDS, "isinf", "isfinite", "isnan")


def _defines(given: str, name: str) -> bool:
    """Whether a name in front of = means `name`: it, in either case, primed, or with an index of `_NEWER`."""
    stem, _, index = given.rstrip("'").removeprefix("new_").partition("_")
    return stem.lower() == name.lower() and index in _NEWER


class _Parser:
    def __init__(self, text: str, variables: Mapping[str, str]) -> None:
        self.text, self.variables = text, variables
        self.tokens: list[Token] = tokens(text)
        self.at = self.depth = 0

    @property
    def here(self) -> Token:
        return self.tokens[self.at]

    def error(self, reason: str, token: Token | None = None) -> FormulaError:
        return FormulaError(reason, self.text, (token or self.here).at)

    def take(self, *kinds: str) -> Token | None:
        """The token here, passed over, where it is of one of these kinds or one of these words."""
        token = self.here
        if token.kind in kinds or (token.kind == "name" and token.text in kinds and token.text in _WORDS):
            self.at += 1
            return token
        return None

    def skip_definition(self, name: str | None) -> None:
        """`S =` before the formula; also `s_k+1 =`, which nothing else could mean there."""
        given, length = self.here.text, 1
        if [token.text for token in self.tokens[1:3]] == ["+", "1"]:
            given, length = f"{given}+1", 3
        if name is None or self.here.kind != "name" or self.tokens[length].kind != "=":
            return
        if given in self.variables or _defines(given, name):
            self.at = length + 1

    def finish(self) -> None:
        if self.here.kind == "=":
            raise self.error("one formula would do, without a second =")
        if self.here.kind != "end":
            unopened = self.here.kind == ")"
            raise self.error(
                "this bracket was not opened" if unopened else "the formula should have ended here"
            )

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"nested deeper than {MAX_DEPTH}")

    def condition(self) -> Node:
        self.deeper()
        node = self.alternative()
        while self.take("or", "|"):
            self.take("|")
            node = self.joined("or", node, self.alternative())
        self.depth -= 1
        return node

    def alternative(self) -> Node:
        node = self.negation()
        while self.take("and", "&"):
            self.take("&")
            node = self.joined("and", node, self.negation())
        return node

    def negation(self) -> Node:
        if self.take("not", "!"):
            self.deeper()
            node = self.joined("not", self.negation())
            self.depth -= 1
            return node
        return self.relation()

    def relation(self) -> Node:
        node = self.sum()
        token = self.take("<", "<=", ">", ">=", "==", "!=") or (self.take("=") if self.depth > 1 else None)
        if token is None:
            return node
        self.value(node, token)
        return Node("==" if token.kind == "=" else token.kind, (node, self.value(self.sum(), token)))

    def joined(self, op: str, *parts: Node) -> Node:
        for part in parts:
            if not is_logic(part):
                raise self.error(f"{op} joins conditions, as m == -inf", self.tokens[self.at - 1])
        return Node(op, parts)

    def value(self, node: Node, token: Token) -> Node:
        if is_logic(node):
            raise self.error("a condition has no value to compute with", token)
        return node

    def sum(self) -> Node:
        node = self.product()
        while token := self.take("+", "-"):
            node = Node(token.kind, (self.value(node, token), self.value(self.product(), token)))
        return node

    def product(self) -> Node:
        node = self.signed()
        while True:
            before = self.tokens[self.at - 1].kind
            if token := self.take("*", "/"):
                node = Node(token.kind, (self.value(node, token), self.value(self.signed(), token)))
            elif self.here.kind in ("name", "(") and self.here.text not in _WORDS:
                token = self.here  # a product without a sign
                node = Node("*", (self.value(node, token), self.value(self.power(), token)))
            elif self.here.kind == "number" and before == "number":
                raise self.error("two numbers side by side: write * between them, and digits without blanks")
            elif self.here.kind == "number":
                raise self.error("write * before a number")
            else:
                return node

    def signed(self) -> Node:
        if token := self.take("+", "-"):
            self.deeper()
            inner = self.value(self.signed(), token)
            self.depth -= 1
            return Node("neg", (inner,)) if token.kind == "-" else inner
        return self.power()

    def power(self) -> Node:
        start = self.here
        base = self.primary()
        if token := self.take("^"):
            self.deeper()
            exponent = self.value(self.signed(), token)
            self.depth -= 1
            if base == Node("name", name="e") and "e" not in self.variables:
                return Node("exp", (exponent,))
            base = Node("^", (self.value(base, token), exponent))
        if base == Node("name", name="e") and "e" not in self.variables:
            raise self.error("e stands alone: write exp(...) or e^(...)", start)
        return base

    def primary(self) -> Node:
        token = self.here
        if self.take("number"):
            return Node("number", number=Fraction(token.text))
        if self.take("("):
            node = self.condition()
            self.close(token)
            return node
        if self.take("name"):
            return self.named(token)
        if token.kind == "end":
            raise self.error("something is missing here: a number, a name or a bracket would do")
        raise self.error(f"{token.text!r} is out of place: a number, a name or a bracket would do")

    def named(self, token: Token) -> Node:
        if token.text in self.variables:
            return Node("name", name=self.variables[token.text])
        function = _SPELLINGS.get(token.text.lower(), token.text.lower())
        if function in FUNCTIONS:
            return self.call(function, token)
        if token.text.lower() in _INFINITY:
            return Node("inf")
        if token.text == "e":
            return Node("name", name="e")
        if token.text.lower() in ("then", "else", "when", "otherwise"):
            raise self.error(_TELLING, token)
        known = ", ".join(dict.fromkeys(self.variables.values()))
        what = f"{known} and functions like exp, log, max would do" if known else "a number would do"
        raise self.error(f"{token.text[:20]!r} is unknown here: {what}", token)

    def call(self, function: str, token: Token) -> Node:
        opening = self.here
        if not self.take("("):
            if function not in _BARE or self.here.kind not in ("number", "name"):
                if function == "where":
                    raise self.error(_TELLING, token)
                raise self.error(f"{token.text} needs brackets: {token.text}(...)", token)
            self.deeper()
            if self.here.text == "e" and "e" not in self.variables:
                raise self.error("e stands alone: write exp(...) or e^(...)")
            inner = self.primary()
            self.depth -= 1
            return Node(function, (inner,))
        parts = [self.condition()]
        while self.take(","):
            parts.append(self.condition())
        self.close(opening)
        least, most = FUNCTIONS[function]
        if not least <= len(parts) <= most:
            if function == "where" and len(parts) == 1:
                raise self.error(_TELLING, token)
            takes = str(least) if least == most else f"{least} to {most}"
            raise self.error(f"{token.text} takes {takes} arguments, not {len(parts)}", token)
        if function == "where" and not is_logic(parts[0]):
            raise self.error(f"{token.text} needs a condition first, as {token.text}(m == 0, 1, m)", token)
        for part in parts[1:] if function == "where" else parts:
            self.value(part, token)
        return Node(function, tuple(parts))

    def close(self, opening: Token) -> None:
        if not self.take(")"):
            raise self.error("this bracket is not closed", opening)
