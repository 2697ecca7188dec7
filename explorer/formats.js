// Number formats: rounding to them, arithmetic in them, and how a number of theirs is written.
//
// JavaScript computes in float64. A sum, difference, product or quotient of two numbers of a narrower format is
// therefore made in float64 and rounded again; float64 has more than twice their digits and two bits more, and with
// so many the second rounding gives what a single one would. exp and log are float64's, rounded: the library's
// simulation (numerics/simulate.py) takes them the same way, so that both give the same bits.
(function () {
  'use strict';
  const Explorer = (globalThis.Explorer = globalThis.Explorer || {});

  // precision: significant bits, the implicit one included; emin, emax: exponents of the normal numbers.
  const FORMATS = {
    float32: { name: 'float32', precision: 24, emin: -126, emax: 127 },
    float16: { name: 'float16', precision: 11, emin: -14, emax: 15 },
    bfloat16: { name: 'bfloat16', precision: 8, emin: -126, emax: 127 },
    float64: { name: 'float64', precision: 53, emin: -1022, emax: 1023 },
  };
  // Added to a number below 2^51 and taken away again, it leaves the nearest whole number, ties to even.
  const WHOLE = 1.5 * 2 ** 52;
  const view = new DataView(new ArrayBuffer(8));

  /** Exponent e of |x| = 2^e * 1.f; -1023 for 0 and float64's subnormals, which lie below every other format. */
  function exponent(x) {
    view.setFloat64(0, x);
    return ((view.getUint32(0) >>> 20) & 0x7ff) - 1023;
  }

  /** Distance of the numbers of `format` around x, which is finite. */
  function ulp(x, format) {
    return 2 ** (Math.max(exponent(x), format.emin) - format.precision + 1);
  }

  /** x, a float64, rounded to `format`: to nearest, ties to even, past the largest number to infinity. */
  function round(x, format) {
    if (format.precision === 53 || !Number.isFinite(x) || x === 0) return x;
    const step = ulp(x, format);
    const near = (Math.abs(x) / step + WHOLE - WHOLE) * step;
    const size = near >= 2 ** (format.emax + 1) ? Infinity : near;
    return x < 0 ? -size : size;
  }

  /** What float64 lost in a + b: a + b = sum + lost, exactly (Knuth's two-sum). */
  function lostOfSum(a, b, sum) {
    const b2 = sum - a;
    return a - (sum - b2) + (b - b2);
  }

  function halves(a) {
    const c = 134217729 * a; // 2^27 + 1
    const high = c - (c - a);
    return [high, a - high];
  }

  /** What float64 lost in a * b (Dekker), for products that are normal numbers. */
  function lostOfProduct(a, b, product) {
    const [ah, al] = halves(a);
    const [bh, bl] = halves(b);
    return al * bl - (product - ah * bh - al * bh - ah * bl);
  }

  /**
   * Arithmetic in `format`: each operation rounds once. With `record`, an array, each adds to it
   * {kind, operands, exact, lost, value, error}: exact + lost is the true result (of exp and log to float64's own
   * accuracy), error = value - (exact + lost), null where it is not finite or not known.
   */
  function arithmetic(format, record) {
    function done(kind, operands, exact, lost) {
      const value = round(exact, format);
      if (record) {
        const known = Number.isFinite(value) && Number.isFinite(exact) && lost !== null;
        const rest = known && Number.isFinite(lost) ? lost : 0;
        record.push({ kind, operands, exact, lost: rest, value, error: known ? value - exact - rest : null });
      }
      return value;
    }
    const wide = format.precision === 53;
    return {
      format,
      add: (a, b) => done('+', [a, b], a + b, lostOfSum(a, b, a + b)),
      sub: (a, b) => done('−', [a, b], a - b, lostOfSum(a, -b, a - b)),
      mul: (a, b) => done('×', [a, b], a * b, wide ? lostOfProduct(a, b, a * b) : 0),
      div: (a, b) => done('÷', [a, b], a / b, wide ? null : 0),
      exp: (a) => done('exp', [a], Math.exp(a), wide ? null : 0),
      log: (a) => done('log', [a], Math.log(a), wide ? null : 0),
    };
  }

  /** The shortest decimal that is read back as the same number of `format`. */
  function text(x, format = FORMATS.float64) {
    if (Number.isNaN(x)) return 'NaN';
    if (!Number.isFinite(x)) return x > 0 ? '+inf' : '−inf';
    if (x === 0) return '0';
    let short = String(x);
    for (let digits = 1; digits <= 17; digits += 1) {
      const tried = Number(x.toPrecision(digits));
      if (round(tried, format) === x) {
        short = String(tried);
        break;
      }
    }
    return short.replace('-', '−').replace('e+', 'e').replace('e-', 'e−');
  }

  /** An amount of no special format, to `digits` digits. */
  function brief(x, digits = 3) {
    return Number.isFinite(x) ? text(Number(x.toPrecision(digits))) : text(x);
  }

  /** "1 entry", "2 entries". */
  const count = (n, one, many) => `${n} ${n === 1 ? one : many}`;

  /**
   * The significant bits of x, not 0 and finite: those that `format` has room for, and those it has not. The bit
   * before the point is the first of them; zeros at the end of the second part are left out.
   */
  function bits(x, format) {
    view.setFloat64(0, Math.abs(x));
    const high = view.getUint32(0);
    const low = view.getUint32(4);
    const lead = (high >>> 20) & 0x7ff;
    const fraction = (high & 0xfffff).toString(2).padStart(20, '0') + low.toString(2).padStart(32, '0');
    const all = (lead ? '1' : '0') + fraction;
    const power = Math.max(lead, 1) - 1023;
    // Below the normal numbers a format has the fewer bits the smaller a number is; far below, none.
    const room = Math.max(0, format.precision - Math.max(0, format.emin - power));
    return { kept: all.slice(0, room), lost: all.slice(room).replace(/0+$/, ''), power };
  }

  Explorer.formats = { FORMATS, exponent, ulp, round, arithmetic, text, brief, count, bits };
})();
