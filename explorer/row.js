// What may be typed: a row of numbers, whole numbers in a range, amounts; and rows worth trying.
(function () {
  'use strict';
  const Explorer = (globalThis.Explorer = globalThis.Explorer || {});
  const LONGEST = 512;
  const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
  const NAMED = { inf: Infinity, infinity: Infinity, '∞': Infinity, nan: NaN };
  const WOULD = 'numbers such as 1, -2.5, 3e4, inf, -inf, nan, or 0*300 for 300 zeros would do';

  const PRESETS = [
    { name: 'A late maximum', row: '1, 2, 3, 1000', format: 'float32' },
    { name: 'Rising: a rescale at each step', row: '0, 1, 2, 3, 4, 5, 6, 7', format: 'float32' },
    { name: 'Falling: no rescale', row: '7, 6, 5, 4, 3, 2, 1, 0', format: 'float32' },
    { name: 'Scores of ordinary size', row: '0.3, -1.2, 2.1, 0.7, 1.9, -0.4, 2.6, 0.1', format: 'bfloat16' },
    { name: 'Equal entries: bfloat16 stalls', row: '0*300', format: 'bfloat16' },
    { name: 'Small terms that float16 drops', row: '0, -17.4*40', format: 'float16' },
    { name: 'Small steps upward', row: '0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9', format: 'float16' },
    { name: 'Masked first: needs the guard', row: '-inf, -inf, 1, 2', format: 'float32' },
    { name: 'All masked', row: '-inf, -inf, -inf', format: 'float32' },
    { name: 'An entry past float16', row: '1, 70000, 2', format: 'float16' },
    { name: 'A NaN', row: '1, nan, 2', format: 'float32' },
  ];

  function oneNumber(part, place) {
    const named = NAMED[part.toLowerCase().replace(/^[+-]/, '')];
    if (named !== undefined) return part.startsWith('-') ? -named : named;
    if (!NUMBER.test(part)) throw new RangeError(`entry ${place}: "${part.slice(0, 40)}" is no number; ${WOULD}`);
    const x = Number(part);
    if (!Number.isFinite(x)) {
      throw new RangeError(`entry ${place}: ${part.slice(0, 40)} is past float64; up to 1.79e308, or inf, would do`);
    }
    return x;
  }

  /** The numbers of a text, 1 to 512 of them. RangeError with a sentence for the reader. */
  function parseRow(text) {
    const row = [];
    const parts = text.replaceAll('−', '-').split(/[\s,;]+/).filter((part) => part !== '');
    if (!parts.length) throw new RangeError(`the row is empty; ${WOULD}`);
    for (const part of parts) {
      const [first, times, ...rest] = part.split('*');
      const count = times === undefined ? 1 : Number(times);
      if (rest.length || (times !== undefined && !/^[1-9]\d{0,5}$/.test(times))) {
        throw new RangeError(`entry ${row.length}: "${part.slice(0, 40)}" repeats no number so often; ${WOULD}`);
      }
      const x = oneNumber(first, row.length);
      if (row.length + count > LONGEST) {
        throw new RangeError(
          `the row has more than ${LONGEST} entries; up to ${LONGEST} would do here, ` +
            'and online-softmax explain --file takes any number');
      }
      for (let i = 0; i < count; i += 1) row.push(x);
    }
    return row;
  }

  /** A whole number from `low` to `high`. RangeError naming what it is of. */
  function parseWhole(text, name, low, high) {
    const plain = String(text).trim();
    const x = /^\d{1,16}$/.test(plain) ? Number(plain) : NaN;
    if (!(x >= low && x <= high)) {
      const would = `a whole number from ${low} to ${high} would do`;
      throw new RangeError(`${name}: ${plain === '' ? 'nothing' : `"${plain.slice(0, 40)}"`} is given; ${would}`);
    }
    return x;
  }

  // Less is no machine's, and would leave the numbers of the charts.
  const LEAST = 0.001;

  /** An amount from LEAST to `high`, in the unit its name gives. */
  function parseAmount(text, name, high) {
    const plain = String(text).trim();
    const x = NUMBER.test(plain) ? Number(plain) : NaN;
    if (!(x >= LEAST && x <= high)) {
      const would = `a number from ${LEAST} to ${high} would do`;
      throw new RangeError(`${name}: ${plain === '' ? 'nothing' : `"${plain.slice(0, 40)}"`} is given; ${would}`);
    }
    return x;
  }

  Explorer.row = { PRESETS, LONGEST, parseRow, parseWhole, parseAmount };
})();
