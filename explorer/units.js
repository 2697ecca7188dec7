// Sizes, rates and times with their units, as the library writes them (traffic/units.py).
(function () {
  'use strict';
  const Explorer = (globalThis.Explorer = globalThis.Explorer || {});
  const BINARY = [['T', 2 ** 40], ['G', 2 ** 30], ['M', 2 ** 20], ['K', 2 ** 10]];

  /** x >= 0 with `digits` decimals, ties to even as Python has it; toFixed alone would take a tie upward. */
  function decimals(x, digits) {
    const exact = x.toFixed(60);
    const cut = exact.length - 60 + digits;
    const tie = /^50*$/.test(exact.slice(cut)) && '02468'.includes(exact.slice(0, cut).replace('.', '').at(-1));
    return tie ? exact.slice(0, cut) : x.toFixed(digits);
  }

  const fixed = (x) => Number(decimals(x, 1));

  /** "134.2 MB (128 MiB)": decimal units and, where it comes out even, binary ones. */
  function bytes(count) {
    if (count < 1000) return `${count} B`;
    const steps = [['kB', 1e3], ['MB', 1e6], ['GB', 1e9], ['TB', 1e12]];
    const [name, unit] = steps.find(([, size]) => fixed(count / size) < 1000) || steps[3];
    const text = `${decimals(count / unit, 1)} ${name}`;
    const even = BINARY.find(([, size]) => count % size === 0 && count / size < 1024 && count / size >= 1);
    return even ? `${text} (${count / even[1]} ${even[0]}iB)` : text;
  }

  /** "134.2 us": the unit that leaves one to three digits before the point. */
  function seconds(time) {
    const steps = [['ns', 1e-9], ['us', 1e-6], ['ms', 1e-3]];
    const [name, unit] = steps.find(([, size]) => fixed(time / size) < 1000) || ['s', 1];
    return `${decimals(time / unit, 1)} ${name}`;
  }

  /** "2.00 TB/s". */
  function rate(perSecond) {
    const steps = [['MB/s', 1e6], ['GB/s', 1e9]];
    if (perSecond < 1e6) return `${decimals(perSecond, 0)} B/s`;
    const [name, unit] = steps.find(([, size]) => Number(decimals(perSecond / size, 2)) < 1000) || ['TB/s', 1e12];
    return `${decimals(perSecond / unit, 2)} ${name}`;
  }

  Explorer.units = { bytes, seconds, rate, decimals };
})();
