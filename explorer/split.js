// Where to split the row: the state of each part, and their merges.
(function () {
  'use strict';
  const Explorer = (globalThis.Explorer = globalThis.Explorer || {});
  const { $, el, code, operations, tableRows } = Explorer.dom;
  const { text, brief, FORMATS } = Explorer.formats;
  const page = Explorer.page;
  const NAMES = ['left: its drop', 'left: its factor', 'left: its sum there', 'right: its drop', 'right: its factor',
    'right: its sum there', 'the merged s'];
  const MOST_CUTS = 3;
  let length = 0;
  let placeAt = () => 0;

  /** Ascending positions within the row, 1 to 3 of them. */
  function cutsOf(words, n) {
    const cuts = words.split(',').slice(0, MOST_CUTS).map(Number).filter(Number.isInteger);
    return cuts.map((cut) => Math.max(0, Math.min(n, cut))).sort((a, b) => a - b);
  }

  const setCuts = (cuts) => page.set({ cuts: [...cuts].sort((a, b) => a - b).join(',') });

  /** Sliders, one a cut; made anew only where their number changes, so that a focused one keeps the focus. */
  function showSliders(cuts) {
    const box = $('split-sliders');
    if (box.children.length !== cuts.length) {
      box.replaceChildren(...cuts.map((_, i) =>
        el('label', {}, `Cut ${i + 1}`,
          el('input', {
            type: 'range', min: 0, step: 1, id: `cut-${i}`,
            oninput: (event) => {
              const now = cutsOf(page.settings.cuts, length);
              // A cut stops at its neighbours: they never change places.
              const [low, high] = [now[i - 1] ?? 0, now[i + 1] ?? length];
              now[i] = Math.max(low, Math.min(high, Number(event.target.value)));
              event.target.value = now[i];
              setCuts(now);
            },
          }))));
    }
    cuts.forEach((cut, i) => {
      const slider = $(`cut-${i}`);
      slider.max = length;
      slider.value = cut;
      slider.setAttribute('aria-valuetext', `between entry ${cut - 1} and entry ${cut}`);
    });
  }

  const span = (part) =>
    part.start === part.stop ? 'no entries' : part.stop - part.start === 1
      ? `entry ${part.start}` : `entries ${part.start} to ${part.stop - 1}`;

  function showParts(found) {
    tableRows($('split-parts'), ['', 'm', 's'], found.parts.map((part, i) => ({
      cells: [`Part ${i + 1}: ${span(part)}`, code(part.state.m, found.format), code(part.state.s, found.format)],
      className: `part-${i}`,
    })));
  }

  function showMerges(found) {
    $('split-merges').replaceChildren(...found.merges.map((one) => {
      const ops = el('ol', { class: 'ops' });
      operations(ops, one.ops, found.format, NAMES);
      const { m, s } = one.into.state;
      return el('li', {},
        el('p', {}, `${span(one.a)} with ${span(one.b)}: m = `, code(m, found.format), ', s = ', code(s, found.format)),
        el('details', {}, el('summary', {}, 'Its operations'), ops));
    }));
  }

  function showWhole(found, row, settings) {
    const streamed = Explorer.follow.follow(row, settings.format, settings.guard === 'on');
    const truth = streamed.truth.at(-1);
    tableRows($('split-whole'), ['', 'm', 's', 'log-sum-exp'], [
      ['Merged', found.whole, found.lse, found.format], ['One stream', streamed.state, streamed.lse, found.format],
      ['Truth', truth, streamed.trueLse, FORMATS.float64],
    ].map(([name, state, lse, format]) => ({
      cells: [name, code(state.m, format), code(state.s, format), code(lse, format)],
      className: Number.isNaN(state.s) && !Number.isNaN(truth.s) ? 'bad' : null,
    })));
    $('split-told').textContent = verdict(found.whole, streamed.state, truth);
  }

  function verdict(merged, streamed, truth) {
    if (Number.isNaN(merged.s) && !Number.isNaN(truth.s)) {
      return 'Without the guard an infinite maximum was taken from itself: −inf − (−inf) is not a number.';
    }
    if (Number.isNaN(merged.s)) return 'A NaN in one part taints the whole, as it must.';
    if (Object.is(merged.s, streamed.s) && Object.is(merged.m, streamed.m)) {
      return 'Split or not, the same bits here: same maximum, same sum.';
    }
    const apart = Math.abs(merged.s - streamed.s) / Math.abs(truth.s);
    return `The maximum is the same; the sums were rounded in another order and differ by ${brief(apart)} of the sum. ` +
      'With exact arithmetic they would be equal.';
  }

  function render(settings) {
    const row = page.field('row', Explorer.row.parseRow);
    if (row === null) return;
    length = row.length;
    const cuts = cutsOf(settings.cuts, length);
    const found = Explorer.follow.split(row, settings.format, cuts, settings.order, settings.guard === 'on');
    const held = row.map((x) => Explorer.formats.round(x, found.format));
    const partOf = (k) => cuts.filter((cut) => cut <= k).length;
    placeAt = Explorer.charts.rowChart($('split-chart'), {
      row: held, classOf: (k) => `part-${partOf(k)}`, cuts,
      label: `The row in ${found.parts.length} parts: ${found.parts.map(span).join('; ')}`,
    });
    showSliders(cuts);
    $('split-add').disabled = cuts.length >= MOST_CUTS;
    $('split-remove').disabled = cuts.length <= 1;
    showParts(found);
    showMerges(found);
    showWhole(found, row, settings);
  }

  /** Dragging in the picture moves the cut that was nearest when the drag began. */
  function drag(chart) {
    let held = null;
    const move = (event) => {
      const cuts = cutsOf(page.settings.cuts, length);
      const [low, high] = [cuts[held - 1] ?? 0, cuts[held + 1] ?? length];
      cuts[held] = Math.max(low, Math.min(high, placeAt(event.clientX)));
      setCuts(cuts);
    };
    chart.addEventListener('pointerdown', (event) => {
      const cuts = cutsOf(page.settings.cuts, length);
      const place = placeAt(event.clientX);
      held = cuts.reduce((best, cut, i) => (Math.abs(cut - place) < Math.abs(cuts[best] - place) ? i : best), 0);
      chart.setPointerCapture(event.pointerId);
      move(event);
    });
    chart.addEventListener('pointermove', (event) => { if (held !== null) move(event); });
    for (const end of ['pointerup', 'pointercancel']) chart.addEventListener(end, () => { held = null; });
  }

  drag($('split-chart'));
  $('split-add').addEventListener('click', () => {
    const cuts = cutsOf(page.settings.cuts, length);
    // Into the middle of the longest part.
    const edges = [0, ...cuts, length];
    const sizes = edges.slice(1).map((edge, i) => edge - edges[i]);
    const widest = sizes.indexOf(Math.max(...sizes));
    setCuts([...cuts, edges[widest] + Math.floor(sizes[widest] / 2)]);
  });
  $('split-remove').addEventListener('click', () => setCuts(cutsOf(page.settings.cuts, length).slice(0, -1)));
  page.panel(['row', 'format', 'guard', 'cuts', 'order'], render);
})();
