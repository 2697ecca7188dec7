// A row through the stream, entry by entry, with all that happened: numbers only, nothing of the page.
//
// What is counted and how it is named is that of numerics/trace.py and numerics/explain.py.
(function () {
  'use strict';
  const Explorer = (globalThis.Explorer = globalThis.Explorer || {});
  const { FORMATS, round, arithmetic } = Explorer.formats;
  const law = Explorer.state;
  const WIDE = arithmetic(FORMATS.float64);

  /** A running sum with what its additions lost kept beside it (Neumaier), read by value(). */
  function carefulSum() {
    let sum = 0;
    let lost = 0;
    return {
      add(x) {
        const next = sum + x;
        lost += Math.abs(sum) >= Math.abs(x) ? sum - next + x : x - next + sum;
        sum = next;
      },
      value: () => (Number.isFinite(sum) ? sum + lost : sum),
    };
  }

  /** The truth, as far as float64 shows it: the states of all prefixes of a row, each summed at its own maximum. */
  function trueStates(row) {
    let m = -Infinity;
    let sum = carefulSum();
    return row.map((x, k) => {
      const next = law.joint(m, x);
      if (Object.is(next, m)) sum.add(law.weight(x, m, WIDE));
      else {
        m = next;
        sum = carefulSum();
        for (let i = 0; i <= k; i += 1) sum.add(Number.isNaN(m) ? NaN : law.weight(row[i], m, WIDE));
      }
      return { m, s: sum.value() };
    });
  }

  /** One push, recorded, with what it did to the term and to the sum. */
  function stepOf(before, x, format, guard) {
    const ops = [];
    const after = law.push(before, x, arithmetic(format, ops), guard);
    const silent = arithmetic(format);
    const factor = law.weight(before.m, after.m, silent, guard);
    const term = law.weight(x, after.m, silent, guard);
    const moved = silent.mul(before.s, factor);
    const rose = !Object.is(before.m, after.m);
    const both = term > 0 && moved > 0;
    return {
      x, before, after, factor, term, moved, ops, rose,
      rescaled: rose && before.s > 0 && Number.isFinite(after.m),
      wiped: rose && before.s > 0 && moved === 0,
      zero: term === 0 && x > -Infinity,
      subnormal: term > 0 && term < 2 ** format.emin,
      termUnheard: both && after.s === moved && moved >= term,
      sumUnheard: both && after.s === term && term > moved,
    };
  }

  /** Entries marked by what the additions and rescales of the steps did to them. */
  function marks(steps) {
    const none = () => steps.map(() => false);
    const found = { zeros: none(), subnormals: none(), vanished: none(), unheard: none(), stalled: 0, events: [] };
    steps.forEach((step, k) => {
      found.zeros[k] = step.zero;
      found.subnormals[k] = step.subnormal;
      if (step.wiped) found.vanished.fill(true, 0, k);
      if (step.termUnheard) found.unheard[k] = true;
      if (step.sumUnheard) found.unheard.fill(true, 0, k);
      if (step.termUnheard || step.sumUnheard) found.stalled += 1;
      if (step.rose && Number.isFinite(step.after.m)) {
        const first = !(step.before.m > -Infinity);
        if (first || step.rescaled) {
          found.events.push({
            index: k, maximum: step.after.m, start: 0, stop: first ? 0 : k, factor: first ? 1 : step.factor,
            before: step.before.s, after: step.after.s,
          });
        }
      }
    });
    return found;
  }

  /** Which part of the true sum is lost to underflow, and which to additions that changed nothing. */
  function losses(held, found) {
    const last = trueStates(held).at(-1);
    const share = (chosen) =>
      held.reduce((sum, x, k) => (chosen(k) ? sum + law.value(x, last, WIDE) : sum), 0);
    const under = (k) => found.zeros[k] || found.vanished[k];
    return { underflow: share(under), stalling: share((k) => found.unheard[k] && !under(k)) };
  }

  /**
   * The row `given` (float64) through the stream in the format named, entry by entry.
   *
   * held: the row rounded to the format. steps: one an entry. truth: states of the prefixes of the row as given.
   * y, lse: read from the last state; trueY, trueLse: from the last of truth. lost: shares of the true sum.
   */
  function follow(given, name, guard = true) {
    const format = FORMATS[name];
    const held = given.map((x) => round(x, format));
    const steps = [];
    let state = law.identity();
    for (const x of held) {
      steps.push(stepOf(state, x, format, guard));
      state = steps.at(-1).after;
    }
    const truth = trueStates(given);
    const last = truth.length ? truth.at(-1) : law.identity();
    const ops = arithmetic(format);
    const found = marks(steps);
    return {
      given, held, format, guard, steps, truth, state, ...found,
      lse: law.lse(state, ops),
      y: held.map((x) => law.value(x, state, ops)),
      trueLse: law.lse(last, WIDE),
      trueY: given.map((x) => law.value(x, last, WIDE)),
      lost: Number.isFinite(last.m) && Number.isFinite(state.m) ? losses(held, found) : { underflow: 0, stalling: 0 },
    };
  }

  /** Orders in which the states of parts can be joined: each a list of [left, right] over growing spans. */
  const ORDERS = {
    left: (n) => Array.from({ length: n - 1 }, () => [0, 1]),
    right: (n) => Array.from({ length: n - 1 }, (_, i) => [n - 2 - i, n - 1 - i]),
    tree(n) {
      const joins = [];
      for (let size = n; size > 1; size = Math.ceil(size / 2)) {
        for (let i = 0; i < Math.floor(size / 2); i += 1) joins.push([i, i + 1]);
      }
      return joins;
    },
  };

  /**
   * A row cut at `cuts` (positions, ascending), each part streamed by itself, and the states merged.
   *
   * parts: {start, stop, state}. merges: {a, b, into, ops}, each side {start, stop, state}. whole: the one state.
   */
  function split(given, name, cuts, order = 'left', guard = true) {
    const format = FORMATS[name];
    const held = given.map((x) => round(x, format));
    const silent = arithmetic(format);
    const edges = [0, ...cuts, held.length];
    const parts = edges.slice(1).map((stop, i) => ({
      start: edges[i],
      stop,
      state: held.slice(edges[i], stop).reduce((state, x) => law.push(state, x, silent, guard), law.identity()),
    }));
    const waiting = [...parts];
    const merges = ORDERS[order](parts.length).map(([i, j]) => {
      const ops = [];
      const [a, b] = [waiting[i], waiting[j]];
      const into = { start: a.start, stop: b.stop, state: law.merge(a.state, b.state, arithmetic(format, ops), guard) };
      waiting.splice(i, 2, into);
      return { a, b, into, ops };
    });
    const whole = waiting[0].state;
    return { parts, merges, whole, format, lse: law.lse(whole, silent) };
  }

  Explorer.follow = { follow, split, trueStates, ORDERS };
})();
