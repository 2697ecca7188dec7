// FlashAttention on a small problem: operands, the order of tiles, and the state of every query after each tile.
(function () {
  'use strict';
  const Explorer = (globalThis.Explorer = globalThis.Explorer || {});
  const { FORMATS, arithmetic } = Explorer.formats;
  const law = Explorer.state;
  const OPS = arithmetic(FORMATS.float64);

  /** Multiples of 1/64 in [-2, 2) from a seed, the same in every language (a linear congruence on 32 bits). */
  function numbersFrom(seed) {
    let at = seed >>> 0;
    return () => {
      at = (Math.imul(at, 1664525) + 1013904223) >>> 0;
      return ((at >>> 24) - 128) / 64;
    };
  }

  function matrix(rows, columns, next) {
    return Array.from({ length: rows }, () => Array.from({ length: columns }, next));
  }

  /** q (queries, width), k and v (keys, width), and the scores q.k / sqrt(width), -inf where causal hides a key. */
  function problem({ queries, keys, width, seed, causal }) {
    const next = numbersFrom(seed);
    const q = matrix(queries, width, next);
    const k = matrix(keys, width, next);
    const v = matrix(keys, width, next);
    const scale = 1 / Math.sqrt(width);
    // The last query stands at the last key: query i sees the keys up to i + keys - queries.
    const sees = (i, j) => !causal || j <= i + keys - queries;
    const dot = (a, b) => a.reduce((sum, x, c) => sum + x * b[c], 0);
    const scores = q.map((row, i) => k.map((key, j) => (sees(i, j) ? dot(row, key) * scale : -Infinity)));
    return { q, k, v, scale, scores, sees };
  }

  function blocks(length, size) {
    return Array.from({ length: Math.ceil(length / size) }, (_, b) => [b * size, Math.min((b + 1) * size, length)]);
  }

  /** Direct attention: each row's softmax, then a weighted mean of the values. The truth the tiles must reach. */
  function direct({ scores, v }) {
    return scores.map((row) => {
      const m = Math.max(...row);
      if (m === -Infinity) return { o: v[0].map(() => 0), lse: -Infinity };
      const p = row.map((x) => Math.exp(x - m));
      const s = p.reduce((a, b) => a + b, 0);
      return { o: v[0].map((_, c) => p.reduce((sum, w, j) => sum + w * v[j][c], 0) / s), lse: m + Math.log(s) };
    });
  }

  /**
   * Tile after tile: for each block of queries, over the blocks of keys that one of them sees.
   *
   * steps: {rows: [from, to], keys: [from, to], before, after} with the states of all queries (m, s, o, and in after
   * the factor of the queries in the tile, else null). skipped: tiles that the mask hides altogether.
   */
  function tiles(options) {
    const made = problem(options);
    const states = made.q.map(() => law.identityWith(options.width));
    const steps = [];
    const skipped = [];
    for (const rows of blocks(options.queries, options.tileQueries)) {
      for (const keys of blocks(options.keys, options.tileKeys)) {
        if (!made.sees(rows[1] - 1, keys[0])) {
          skipped.push({ rows, keys });
          continue;
        }
        const before = states.map((state) => ({ ...state, factor: null }));
        for (let i = rows[0]; i < rows[1]; i += 1) {
          states[i] = law.pushBlock(states[i], made.scores[i].slice(...keys), made.v.slice(...keys), OPS);
        }
        const inside = (i) => i >= rows[0] && i < rows[1];
        const after = states.map((state, i) => ({ ...state, factor: inside(i) ? state.factor : null }));
        steps.push({ rows, keys, before, after });
      }
    }
    return {
      ...made, steps, skipped,
      outputs: states.map((state) => law.output(state, OPS)),
      lse: states.map((state) => law.lse(state, OPS)),
      direct: direct(made),
    };
  }

  Explorer.attention = { problem, tiles, direct, output: (state) => law.output(state, OPS) };
})();
