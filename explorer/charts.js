// Pictures: a row as bars, and curves on logarithmic axes. Drawn at the size they have on the page.
(function () {
  'use strict';
  const Explorer = (globalThis.Explorer = globalThis.Explorer || {});
  const { el, svg } = Explorer.dom;
  const { brief, text } = Explorer.formats;
  const ROW_HEIGHT = 132;
  const FOOT = 20;
  const LABEL_WIDTH = 40;

  function widthOf(box) {
    return Math.max(200, Math.floor(box.clientWidth || 320));
  }

  /** Height of an entry's bar: finite ones between the smallest and the largest, infinities at the ends. */
  function heights(row, room) {
    const finite = row.filter(Number.isFinite);
    const low = Math.min(...finite);
    const span = Math.max(...finite) - low;
    return row.map((x) => {
      if (x === -Infinity) return 3;
      if (!Number.isFinite(x)) return room;
      return span > 0 && Number.isFinite(span) ? 8 + ((x - low) / span) * (room - 20) : room / 2;
    });
  }

  /**
   * Bars of a row into `box`: classOf(k) gives a bar its colour, cuts are positions to draw a line at, label says it
   * all in words. Returns the position of the cut nearest to a place on the screen, from 0 to the length.
   */
  function rowChart(box, { row, classOf, cuts = [], label }) {
    const width = widthOf(box);
    const room = ROW_HEIGHT - FOOT;
    const each = width / row.length;
    const tall = heights(row, room - 12);
    const gap = each > 6 ? 2 : 0;
    const picture = svg('svg', { width, height: ROW_HEIGHT, role: 'img', 'aria-label': label });
    row.forEach((x, k) => {
      const left = k * each;
      picture.append(
        svg('rect', {
          x: left + gap / 2, y: room - tall[k], width: Math.max(0.5, each - gap), height: tall[k],
          class: `bar ${classOf(k)}${Number.isNaN(x) ? ' nan' : ''}`,
        }));
      if (each >= LABEL_WIDTH || k === 0 || k === row.length - 1) {
        const end = k === row.length - 1 && k > 0;
        const side = each >= LABEL_WIDTH ? 'middle' : end ? 'end' : 'start';
        const place = { middle: left + each / 2, end: width - 1, start: 1 }[side];
        picture.append(svg('text', { x: place, y: ROW_HEIGHT - 5, 'text-anchor': side }, brief(x, 4)));
      }
    });
    for (const cut of cuts) {
      const x = Math.max(2, Math.min(width - 2, cut * each));
      picture.append(
        svg('line', { x1: x, x2: x, y1: 0, y2: room, class: 'cut' }),
        svg('circle', { cx: Math.max(8, Math.min(width - 8, x)), cy: 9, r: 8, class: 'grip' }));
    }
    box.replaceChildren(picture);
    return (clientX) => {
      const { left } = picture.getBoundingClientRect();
      return Math.max(0, Math.min(row.length, Math.round((clientX - left) / each)));
    };
  }

  const LEFT = 64;
  const BELOW = 40;
  const HEIGHT = 300;
  const LETTER = 7.5;

  /** Places on a logarithmic axis. */
  function axis(from, to, start, end) {
    const [a, b] = [Math.log10(from), Math.log10(to)];
    return (x) => start + ((Math.log10(x) - a) / (b - a)) * (end - start);
  }

  function decades(from, to, most) {
    const all = [];
    if (!(from > 0 && Number.isFinite(to))) return all;
    for (let k = Math.ceil(Math.log10(from) - 1e-9); k <= Math.log10(to) + 1e-9; k += 1) all.push(k);
    const every = Math.ceil(all.length / most);
    return all.filter((_, i) => i % every === 0).map((k) => Number(`1e${k}`));
  }

  function frame(picture, { x, y, width, atX, atY }) {
    const [top, bottom, right] = [8, HEIGHT - BELOW, width - 8];
    for (const tick of decades(x.from, x.to, width / 70)) {
      picture.append(
        svg('line', { x1: atX(tick), x2: atX(tick), y1: top, y2: bottom, class: 'grid' }),
        svg('text', { x: atX(tick), y: bottom + 16, 'text-anchor': 'middle' }, x.text(tick)));
    }
    for (const tick of decades(y.from, y.to, 7)) {
      picture.append(
        svg('line', { x1: LEFT, x2: right, y1: atY(tick), y2: atY(tick), class: 'grid' }),
        svg('text', { x: LEFT - 6, y: atY(tick) + 4, 'text-anchor': 'end' }, y.text(tick)));
    }
    picture.append(
      svg('path', { d: `M${LEFT},${top}V${bottom}H${right}`, class: 'frame' }),
      svg('text', { x: (LEFT + right) / 2, y: HEIGHT - 6, 'text-anchor': 'middle' }, x.label));
  }

  /** An upright line with its words to its left, or to its right where there is no room. */
  function mark(picture, { at, words, row = 0 }, atX) {
    const x = atX(at);
    const side = x - LEFT > words.length * LETTER + 5 ? 'end' : 'start';
    picture.append(
      svg('line', { x1: x, x2: x, y1: 8, y2: HEIGHT - BELOW, class: 'mark' }),
      svg('text', { x: x + (side === 'end' ? -5 : 5), y: 20 + 15 * row, 'text-anchor': side, class: 'told' }, words));
  }

  /**
   * Curves and points on logarithmic axes. x, y: {label, from, to, text}; lines: {points, className}; marks: {at,
   * words, row}; levels: {at, words}; dots: {x, y, className, name}.
   */
  function logChart(box, { x, y, lines, marks = [], levels = [], dots = [], label }) {
    const width = widthOf(box);
    const atX = axis(x.from, x.to, LEFT, width - 8);
    const atY = axis(y.from, y.to, HEIGHT - BELOW, 8);
    const picture = svg('svg', { width, height: HEIGHT, role: 'img', 'aria-label': label });
    frame(picture, { x, y, width, atX, atY });
    for (const { at, words } of levels) {
      picture.append(
        svg('line', { x1: LEFT, x2: width - 8, y1: atY(at), y2: atY(at), class: 'mark' }),
        svg('text', { x: width - 12, y: atY(at) - 5, 'text-anchor': 'end', class: 'told' }, words));
    }
    for (const { points, className } of lines) {
      const d = points.map(([a, b], i) => `${i ? 'L' : 'M'}${atX(a).toFixed(2)},${atY(b).toFixed(2)}`).join('');
      picture.append(svg('path', { d, class: `curve ${className}` }));
    }
    for (const one of marks) mark(picture, one, atX);
    for (const dot of dots) {
      picture.append(
        svg('circle', { cx: atX(dot.x), cy: atY(dot.y), r: 6, class: `dot ${dot.className}` },
          svg('title', {}, dot.name)));
    }
    box.replaceChildren(picture, el('p', { class: 'axis' }, y.label));
  }

  /** A number as ticks have it: 1k, 10k, 1M. */
  function short(n, gap = '') {
    for (const [unit, size] of [['T', 1e12], ['G', 1e9], ['M', 1e6], ['k', 1e3]]) {
      if (n >= size) return `${brief(n / size)}${gap}${unit}`;
    }
    return text(n);
  }

  Explorer.charts = { rowChart, logChart, short, widthOf };
})();
