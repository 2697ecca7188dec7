// Making elements, and the parts that several panels share: a row of step buttons, an operation written out.
(function () {
  'use strict';
  const Explorer = (globalThis.Explorer = globalThis.Explorer || {});
  const { text, brief, bits, ulp } = Explorer.formats;

  const $ = (id) => document.getElementById(id);

  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
    }
    node.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return node;
  }

  /** An element with attributes (on... are listeners; null and false leave one out) and children. */
  const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

  /** The same of SVG. */
  const svg = (tag, attributes = {}, ...children) =>
    fill(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);

  /** The body of a table: rows of cells, each text or nodes; the first cell heads its row. */
  function tableRows(table, headings, rows) {
    table.tBodies[0].replaceChildren(
      ...rows.map(({ cells, className }) =>
        el('tr', { class: className },
          ...cells.map((cell, i) =>
            i === 0 ? el('th', { scope: 'row' }, cell) : el('td', { 'data-label': headings[i] }, cell)))));
  }

  /** A number in the code style, never broken off. */
  const code = (x, format) => el('code', {}, typeof x === 'string' ? x : text(x, format));

  const inner = (x, format) => (x < 0 ? `(${text(x, format)})` : text(x, format));

  /** "exp(−2)", "1.5 × 0.25": the operation without its result. */
  function expression({ kind, operands }, format) {
    if (operands.length === 1) return `${kind}(${text(operands[0], format)})`;
    return `${text(operands[0], format)} ${kind} ${inner(operands[1], format)}`;
  }

  /** What an operation's rounding did, in words and bits. */
  function roundingOf(op, format) {
    if (Number.isNaN(op.value)) return [el('span', { class: 'bad' }, 'not a number')];
    if (op.error === 0 || !Number.isFinite(op.exact)) return [el('span', { class: 'quiet' }, 'exact')];
    if (op.error === null) {
      const why = Number.isFinite(op.value)
        ? 'float64 measures the others; its own last bit is not followed here'
        : `past the largest number of ${format.name}: it becomes an infinity`;
      return [el('span', { class: 'quiet' }, why)];
    }
    const told = el('span', {}, `true result ${text(op.exact)}, rounding error `, code(brief(op.error)));
    if (op.value === 0) {
      const why = `${format.name} has no number so small: it vanishes`;
      return [told, el('span', { class: 'bad' }, why)];
    }
    const units = Math.abs(op.error) / ulp(op.value, format);
    return [told, el('span', { class: 'quiet' }, `${brief(units, 2)} ulp`), lostBits(op, format)];
  }

  function lostBits(op, format) {
    const { kept, lost, power } = bits(op.exact, format);
    const all = kept + lost;
    const point = (digits, from) => (from === 0 && digits.length > 1 ? `${digits[0]}.${digits.slice(1)}` : digits);
    const more = op.lost !== 0 || op.kind === 'exp' || op.kind === 'log' ? '…' : '';
    const way = Math.abs(op.value) > Math.abs(op.exact) ? 'up' : 'down';
    return el('span', { class: 'bits' },
      el('code', { 'aria-label': `bits ${all}, of which ${lost.length || 'further ones'} do not fit; rounded ${way}` },
        point(kept, 0), el('span', { class: 'lost' }, lost + more)),
      ' × 2', el('sup', {}, text(power)), `, rounded ${way}`);
  }

  /** The operations of a step as list items, with a name for each where there are names. */
  function operations(list, ops, format, names) {
    list.replaceChildren(
      ...ops.map((op, i) =>
        el('li', {},
          names.length === ops.length ? el('span', { class: 'name' }, names[i]) : null,
          el('code', { class: 'made' }, `${expression(op, format)} = ${text(op.value, format)}`),
          ...roundingOf(op, format))));
  }

  /**
   * Buttons first, back, play, next, end and a slider over `key` of the settings, from 0 to what count() says.
   * update() sets them to the settings.
   */
  function transport(root, { key, label, count, page }) {
    let timer = null;
    const at = () => Math.min(Number(page.settings[key]), count());
    const go = (step) => page.set({ [key]: String(Math.max(0, Math.min(count(), step))) });
    const slider = el('input', {
      type: 'range', min: 0, step: 1, id: `${key}-slider`, 'aria-label': label,
      oninput: (event) => { stop(); go(Number(event.target.value)); },
    });
    const place = el('output', { for: slider.id, class: 'place' });
    const button = (name, sign, act) =>
      el('button', { type: 'button', onclick: act }, el('span', { 'aria-hidden': 'true' }, `${sign} `), name);
    const play = button('Play', '▶', () => (timer === null ? start() : stop()));
    function start() {
      if (at() >= count()) go(0);
      const pause = Math.max(60, Math.min(900, 20000 / Math.max(1, count())));
      timer = setInterval(() => { if (at() >= count()) stop(); else go(at() + 1); }, pause);
      show();
    }
    function stop() {
      clearInterval(timer);
      timer = null;
      show();
    }
    function show() {
      play.lastChild.textContent = timer === null ? 'Play' : 'Pause';
      play.firstChild.textContent = timer === null ? '▶ ' : '■ ';
      for (const live of document.querySelectorAll(`[data-live="${key}"]`)) {
        live.setAttribute('aria-live', timer === null ? 'polite' : 'off');
      }
    }
    const steer = (name, sign, target) => button(name, sign, () => { stop(); go(target()); });
    root.replaceChildren(
      el('div', { class: 'buttons', role: 'group', 'aria-label': label },
        steer('First', '«', () => 0), steer('Back', '‹', () => at() - 1), play,
        steer('Next', '›', () => at() + 1), steer('End', '»', count)),
      el('div', { class: 'slide' }, slider, place));
    return {
      stop,
      update() {
        slider.max = count();
        slider.value = at();
        place.textContent = `${at()} of ${count()}`;
      },
    };
  }

  Explorer.dom = { $, el, svg, tableRows, code, operations, transport };
})();
