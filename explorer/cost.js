// Bytes and time: the table of algorithms, the curve over the length of a row, the roofline.
(function () {
  'use strict';
  const Explorer = (globalThis.Explorer = globalThis.Explorer || {});
  const { $, el, svg, tableRows } = Explorer.dom;
  const { brief } = Explorer.formats;
  const { bytes, seconds, rate, decimals } = Explorer.units;
  const { logChart, short } = Explorer.charts;
  const { parseWhole, parseAmount } = Explorer.row;
  const { cost, data, page } = Explorer;
  const OWN = 'own';
  // All counts stay below 2^53 with these: 4 passes, 8 bytes, 19 flops an element.
  const [MOST_ROWS, MOST_COLUMNS] = [1e6, 1e7];
  const HEADINGS = ['', 'Reads, writes', 'Bytes moved', 'Least time', 'Held back by', 'Flop/byte',
    'Against three_pass'];
  const BOUNDS = { memory: 'memory', compute: 'arithmetic', exp: 'exponentials', launch: 'the launch' };

  /** The machine chosen, or null where one of the reader's own numbers is none. */
  function machine(settings) {
    if (settings.device !== OWN) return data.DEVICES.find((device) => device.key === settings.device);
    const bandwidth = page.field('bandwidth', (t, name) => parseAmount(t, name, 1e6));
    const ridge = page.field('ridge', (t, name) => parseAmount(t, name, 1e6));
    const cache = page.field('cache', (t, name) => parseAmount(t, name, 1e6));
    if (bandwidth === null || ridge === null || cache === null) return null;
    return cost.given(bandwidth * 1e9, ridge, Math.floor(cache * 1e6));
  }

  function shapeOf(settings) {
    const rows = page.field('rows', (t, name) => parseWhole(t, name, 1, MOST_ROWS));
    const columns = page.field('columns', (t, name) => parseWhole(t, name, 1, MOST_COLUMNS));
    const resident = page.field('resident', (t, name) => (t.trim() === '' ? 'all' : parseWhole(t, name, 1, MOST_ROWS)));
    if (rows === null || columns === null || resident === null) return null;
    const shape = { rows, columns, itemsize: data.ITEMSIZES[settings.dtype], allocate: settings.allocate === 'on' };
    return { shape, resident: resident === 'all' ? null : resident };
  }

  function showTable(result) {
    tableRows($('cost-table'), HEADINGS, result.lines.map((line, i) => ({
      cells: [
        el('span', { class: 'named' }, swatch(i), ` ${line.key}`), `${line.moved.reads}, ${line.moved.writes}`,
        el('span', {}, el('code', {}, bytes(line.moved.total))), el('code', {}, seconds(line.floor.seconds)),
        BOUNDS[line.floor.bound], brief(line.moved.intensity, 4), `${decimals(line.speedup, 2)}×`,
      ],
    })));
  }

  const swatch = (i) =>
    svg('svg', { width: 30, height: 10, 'aria-hidden': 'true', class: 'swatch' },
      svg('path', { d: 'M1,5H29', class: `curve algorithm-${i}` }));

  /** What the table alone would leave out. */
  function remarks(result) {
    const { regime, machine: rates, shape, lines } = result;
    const told = [];
    if (regime === null) {
      told.push('No size of the last cache is known here, so no regime is told: bytes and times are those of memory.');
    } else {
      told.push(`${bytes(regime.lastLevel)} of last-level cache shared by ${regime.resident} rows in flight leave ` +
        `${bytes(regime.deciding)} a row (${Math.floor(regime.deciding / shape.itemsize)} columns). From there on the ` +
        'number of passes decides.');
      told.push({
        'tensor in cache': `The whole tensor, ${bytes(regime.tensor)}, fits the cache: further passes are served by ` +
          'it, and the number of passes does not predict the time of a tensor that was just made.',
        'rows in cache':
          'The rows in flight fit the cache: memory sees every element once, whatever the algorithm.',
        'rows past cache': 'The rows in flight do not fit the cache: each pass goes to memory again.',
      }[regime.name]);
      if (rates.units && rates.units < regime.resident) {
        const fewer = Math.floor(regime.lastLevel / rates.units);
        told.push(`With one row in flight on each of the ${rates.units} units it is ${bytes(fewer)} a row ` +
          `(${Math.floor(fewer / shape.itemsize)} columns).`);
      }
    }
    const least = Math.min(...lines.map((line) => line.floor.seconds));
    if (rates.launch && least <= 4 * rates.launch) {
      told.push(`A launch costs ${seconds(rates.launch)} beside a floor of ${seconds(least)}: launches and latency ` +
        'decide, not the number of passes.');
    }
    return told;
  }

  /** Lengths from 32 on, two a doubling, and both sides of the step where the regime changes. */
  function lengths(result) {
    const { columns } = result.shape;
    const end = Math.max(columns * 16, 2 ** 17);
    const all = [];
    for (let i = 0; 32 * 2 ** (i / 2) <= end; i += 1) all.push(Math.round(32 * 2 ** (i / 2)));
    const edge = result.regime ? Math.floor(result.regime.deciding / result.shape.itemsize) : 0;
    return [...new Set([...all, edge, edge + 1])].filter((n) => n >= 32 && n <= end).sort((a, b) => a - b);
  }

  function showCurve(result) {
    const over = lengths(result);
    const lines = result.lines.map((line, i) => ({
      className: `algorithm-${i}`, points: over.map((n) => [n, cost.secondsAt(result, line.key, n)]),
    }));
    const times = lines.flatMap((line) => line.points.map((point) => point[1]));
    const { regime, shape } = result;
    const marks = [{ at: shape.columns, words: 'this shape', row: 0 }];
    if (regime) {
      const deciding = Math.floor(regime.deciding / shape.itemsize);
      const leaving = Math.floor(regime.lastLevel / (shape.rows * shape.itemsize));
      marks.push({ at: deciding, words: 'passes decide →', row: 1 });
      if (leaving !== deciding) marks.push({ at: leaving, words: 'tensor past cache →', row: 2 });
    }
    const [from, to] = [over[0], over.at(-1)];
    logChart($('cost-curve'), {
      x: { label: 'columns', from, to, text: (n) => short(n) },
      y: {
        label: 'Upright: least seconds', from: Math.min(...times) / 2, to: Math.max(...times) * 2,
        text: (t) => seconds(t).replace('.0', ''),
      },
      lines, marks: marks.filter(({ at }) => at >= from && at <= to),
      label: `Least time against columns, ${over.length} lengths from ${from} to ${to}`,
    });
  }

  function showRoofline(result) {
    const { machine: rates, lines } = result;
    const ridge = rates.vector_peak ? rates.vector_peak / rates.bandwidth : null;
    const points = lines.map((line) => line.moved.intensity);
    const [from, to] = [Math.min(...points) / 4, Math.max(...points, ridge ?? 0) * 4];
    const roof = (x) => Math.min(x * rates.bandwidth, rates.vector_peak ?? Infinity);
    const corner = ridge === null ? [] : [[ridge, rates.vector_peak]];
    const dots = lines.map((line, i) => ({
      x: line.moved.intensity, y: line.moved.flops / line.floor.seconds, className: `algorithm-${i}`, name: line.key,
    }));
    const low = Math.min(roof(from), ...dots.map((dot) => dot.y)) / 2;
    logChart($('cost-roofline'), {
      x: { label: 'flop/byte', from, to, text: (x) => (x >= 1000 ? short(x) : brief(x)) },
      y: { label: 'Upright: flop/s at the floor', from: low, to: roof(to) * 3, text: (n) => short(n) },
      lines: [{ className: 'roof', points: [[from, roof(from)], ...corner, [to, roof(to)]] }],
      marks: ridge === null ? [] : [{ at: ridge, words: `ridge ${brief(ridge)}`, row: 3 }], dots,
      label: `Roofline of ${rates.name}` + (ridge === null ? '' : `, ridge at ${brief(ridge)} flop a byte`),
    });
    $('cost-ridge').textContent = ridge === null
      ? 'No peak of plain arithmetic is known for this device: its roof has no ridge.'
      : `The ridge lies at ${brief(ridge, 4)} flop a byte; the algorithms do ${brief(Math.min(...points), 4)} to ` +
        `${brief(Math.max(...points), 4)}. Left of the ridge memory is what takes the time.`;
  }

  function showSources(rates) {
    const told = [
      ['memory', rate(rates.bandwidth), 'memory_bandwidth'],
      ['last-level cache', rates.last_level ? bytes(rates.last_level) : null, 'last_level'],
      ['plain arithmetic', rates.vector_peak ? `${short(rates.vector_peak, ' ')}flop/s` : null, 'peak.float32'],
      ['exponentials', rates.exp_rate ? `${short(rates.exp_rate, ' ')}/s` : null, 'transcendentals_per_clock'],
      ['a launch', rates.launch ? seconds(rates.launch) : null, 'launch'],
    ];
    $('cost-sources').replaceChildren(...told.map(([name, amount, key]) =>
      el('li', {}, `${name}: ${amount ?? 'not known'}`,
        amount && rates.sources ? el('span', { class: 'quiet' }, ` (${rates.sources[key]})`) : null)));
  }

  function render(settings) {
    $('own-machine').hidden = settings.device !== OWN;
    const rates = machine(settings);
    const asked = shapeOf(settings);
    if (!rates || !asked) return;
    const result = cost.compare(asked.shape, rates, asked.resident);
    showTable(result);
    $('cost-remarks').replaceChildren(...remarks(result).map((one) => el('li', {}, one)));
    $('cost-regime').textContent = result.regime ? result.regime.name : 'not known';
    showCurve(result);
    showRoofline(result);
    showSources(rates);
  }

  for (const device of data.DEVICES) $('device').append(el('option', { value: device.key }, device.name));
  $('device').append(el('option', { value: OWN }, 'Numbers of your own'));
  for (const dtype of Object.keys(data.ITEMSIZES)) $('dtype').append(el('option', { value: dtype }, dtype));
  for (const list of document.querySelectorAll('[data-legend]')) {
    list.replaceChildren(...cost.ALGORITHMS.map(({ key }, i) => el('li', {}, swatch(i), ` ${key}`)));
  }
  page.panel(
    ['rows', 'columns', 'dtype', 'device', 'allocate', 'resident', 'bandwidth', 'ridge', 'cache'], render);
})();
