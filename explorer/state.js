// The law: a row's statistics as a pair that can be pushed to, merged in any order, and read.
//
//   state    m = max(x), s = sum(exp(x - m)); of nothing: (-inf, 0)
//   push     m' = max(m, x);   s' = s * exp(m - m') + exp(x - m')
//   merge    m = max(m_a, m_b);  s = s_a * exp(m_a - m) + s_b * exp(m_b - m)
//   read     lse = m + log(s);  y = exp(x - m) / s;  log y = (x - m) - log(s)
//   values   o' = o * exp(m - m') + sum_j exp(x_j - m') * v_j;  output o / s
//
// One guard serves them all: inside an exponent the pivot is 0 where m is infinite, m itself stays true. At m = +inf
// terms take their limits, 1 for +inf and 0 for the rest. NaN taints m and s both; m is never -0. The same law in
// Python is online_softmax/state.py, and the tests hold both to tests/golden/explorer.json.
//
// `ops` is arithmetic in a format (formats.js). guard = false leaves the guard out, to see what it is for.
(function () {
  'use strict';
  const Explorer = (globalThis.Explorer = globalThis.Explorer || {});

  /** The state of nothing. */
  const identity = () => ({ m: -Infinity, s: 0 });

  /** What to subtract inside an exponent. */
  const pivot = (m, guard) => (guard && Math.abs(m) === Infinity ? 0 : m);

  /** The larger maximum, NaN where either is. Adding 0 turns -0 into 0 and changes nothing else. */
  const joint = (a, b) => Math.max(a, b) + 0;

  /** exp(x - m): what a term or partial sum at height x counts in a sum at m >= x. */
  function weight(x, m, ops, guard = true) {
    if (guard && m === Infinity) return x === Infinity ? 1 : 0;
    return ops.exp(ops.sub(x, pivot(m, guard)));
  }

  /** The state after the entry x. */
  function push(state, x, ops, guard = true) {
    const m = joint(state.m, x);
    const moved = ops.mul(state.s, weight(state.m, m, ops, guard));
    return { m, s: ops.add(moved, weight(x, m, ops, guard)) };
  }

  /** The state of what either has seen. */
  function merge(a, b, ops, guard = true) {
    const m = joint(a.m, b.m);
    const left = ops.mul(a.s, weight(a.m, m, ops, guard));
    return { m, s: ops.add(left, ops.mul(b.s, weight(b.m, m, ops, guard))) };
  }

  /** Natural log of the sum of exp of all entries seen: -inf of nothing, +inf where m is, NaN where tainted. */
  const lse = (state, ops) => ops.add(state.m, ops.log(state.s));

  /** The probability of x under the state; NaN where m is infinite or NaN. */
  function value(x, state, ops) {
    return Number.isFinite(state.m) ? ops.div(weight(x, state.m, ops), state.s) : NaN;
  }

  /** The log-probability of x under the state; NaN where m is infinite or NaN. */
  function logValue(x, state, ops) {
    return Number.isFinite(state.m) ? ops.sub(ops.sub(x, state.m), ops.log(state.s)) : NaN;
  }

  /** The state of nothing with an output of `width` numbers, not yet divided by s. */
  const identityWith = (width) => ({ ...identity(), o: new Array(width).fill(0) });

  /** The state after a block of scores, each with its value (an array): one exponential a score, one rescale. */
  function pushBlock(state, scores, values, ops, guard = true) {
    const m = scores.reduce(joint, state.m);
    const factor = weight(state.m, m, ops, guard);
    let s = ops.mul(state.s, factor);
    const o = state.o.map((part) => ops.mul(part, factor));
    scores.forEach((score, j) => {
      if (score === -Infinity && guard) return; // selected out: its value is never read
      const p = weight(score, m, ops, guard);
      s = ops.add(s, p);
      values[j].forEach((v, c) => {
        o[c] = ops.add(o[c], ops.mul(p, v));
      });
    });
    return { m, s, o, factor };
  }

  /** The weighted mean of the values: o / s, zeros where nothing was seen. */
  const output = (state, ops) => state.o.map((part) => (state.m === -Infinity ? 0 : ops.div(part, state.s)));

  Explorer.state = {
    identity, pivot, joint, weight, push, merge, lse, value, logValue, identityWith, pushBlock, output,
  };
})();
