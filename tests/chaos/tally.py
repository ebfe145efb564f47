"""Count what hypothesis played: it does not say so itself."""

from __future__ import annotations

from hypothesis.stateful import RuleBasedStateMachine, invariant


class Tally:
    """Counts of schedules started and of the steps that they reached."""

    def __init__(self) -> None:
        self.schedules = self._states = 0

    @property
    def steps(self) -> int:
        """Return how many steps were made; each schedule was also seen before its first."""
        return self._states - self.schedules

    def begin(self) -> None:
        """Count a schedule."""
        self.schedules += 1

    def see(self) -> None:
        """Count a state that a schedule reached, or began with."""
        self._states += 1


class Tallied(RuleBasedStateMachine):
    """A machine that counts itself and its steps."""

    def __init__(self, tally: Tally | None = None) -> None:
        super().__init__()
        self._tally = tally or Tally()
        self._tally.begin()

    @invariant()
    def is_counted(self) -> None:
        """Count the state; there is nothing to hold."""
        self._tally.see()
