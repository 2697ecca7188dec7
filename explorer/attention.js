// FlashAttention, tile by tile: the scores, the tile that is worked on, and m, s, o of every query.
(function () {
  'use strict';
  const Explorer = (globalThis.Explorer = globalThis.Explorer || {});
  const { $, el, svg, tableRows, code, transport } = Explorer.dom;
  const { text, brief, count } = Explorer.formats;
  const { parseWhole } = Explorer.row;
  const page = Explorer.page;
  const SIZES = {
    queries: [1, 16], keys: [1, 16], width: [1, 8], tileQueries: [1, 16], tileKeys: [1, 16], seed: [0, 4294967295],
  };
  const DIGITS = 6;
  let run = null;

  /** A vector in few digits; all of them are in the title. */
  function vector(o) {
    return el('code', { title: o.map((x) => text(x)).join(', ') }, o.map((x) => brief(x, DIGITS)).join(', '));
  }

  const few = (x) => el('code', { title: text(x) }, brief(x, DIGITS));

  /** What a cell of the matrix is at step k: in the tile, done, hidden by the mask, or to come. */
  function placeOf(i, j, k) {
    const inside = ({ rows, keys }) => i >= rows[0] && i < rows[1] && j >= keys[0] && j < keys[1];
    if (k > 0 && inside(run.steps[k - 1])) return 'now';
    if (run.steps.slice(0, Math.max(0, k - 1)).some(inside)) return 'done';
    return run.skipped.some(inside) ? 'skipped' : 'waiting';
  }

  function showMatrix(k) {
    const box = $('attention-matrix');
    const { queries, keys } = run.options;
    const width = Math.min(Explorer.charts.widthOf(box), 34 + keys * 46);
    const side = (width - 34) / keys;
    const tall = Math.min(side, 34);
    const finite = run.scores.flat().filter(Number.isFinite);
    const span = Math.max(...finite.map(Math.abs), 1e-9);
    const picture = svg('svg', {
      width, height: 20 + queries * tall + 4, role: 'img',
      'aria-label': `Scores of ${queries} queries by ${keys} keys, ${run.steps.length} tiles, ${k} done`,
    });
    for (let j = 0; j < keys; j += 1) {
      picture.append(svg('text', { x: 34 + (j + 0.5) * side, y: 13, 'text-anchor': 'middle' }, String(j)));
    }
    run.scores.forEach((row, i) => {
      picture.append(svg('text', { x: 28, y: 20 + (i + 0.5) * tall + 4, 'text-anchor': 'end' }, `q${i}`));
      row.forEach((score, j) => {
        const [x, y] = [34 + j * side, 20 + i * tall];
        const hidden = score === -Infinity;
        picture.append(svg('rect', {
          x: x + 1, y: y + 1, width: side - 2, height: tall - 2,
          class: `cell ${placeOf(i, j, k)}${hidden ? ' hidden' : score < 0 ? ' low' : ' high'}`,
          style: null, 'fill-opacity': hidden ? 1 : 0.15 + 0.75 * Math.abs(score / span),
        }));
        const words = hidden ? '–' : score.toFixed(1);
        if (side >= 30) {
          const place = { x: x + side / 2, y: y + tall / 2 + 4, 'text-anchor': 'middle', class: 'score' };
          picture.append(svg('text', place, words));
        }
      });
    });
    outline(picture, k, side, tall);
    box.replaceChildren(picture);
  }

  function outline(picture, k, side, tall) {
    if (!k) return;
    const { rows, keys } = run.steps[k - 1];
    picture.append(svg('rect', {
      x: 34 + keys[0] * side, y: 20 + rows[0] * tall, width: (keys[1] - keys[0]) * side,
      height: (rows[1] - rows[0]) * tall, class: 'tile',
    }));
  }

  function showTile(k) {
    const step = k ? run.steps[k - 1] : null;
    const rows = step ? Array.from({ length: step.rows[1] - step.rows[0] }, (_, n) => step.rows[0] + n) : [];
    tableRows($('attention-tile'), ['', 'm', 'Factor', 's', 'o before', 'o rescaled', 'o after'], rows.map((i) => {
      const [before, after] = [step.before[i], step.after[i]];
      return {
        cells: [`q${i}`, el('span', {}, few(before.m), ' → ', few(after.m)), few(after.factor),
          el('span', {}, few(before.s), ' → ', few(after.s)), vector(before.o),
          vector(before.o.map((x) => x * after.factor)), vector(after.o)],
        className: after.factor < 1 && before.s > 0 ? 'rescaled' : null,
      };
    }));
    $('attention-told').textContent = told(step, k);
  }

  function told(step, k) {
    if (!step) return 'No tile yet: every query holds m = −inf, s = 0 and an output of zeros.';
    const moved = [];
    for (let i = step.rows[0]; i < step.rows[1]; i += 1) {
      if (step.before[i].s > 0 && step.after[i].factor < 1) moved.push(`q${i}`);
    }
    const [rows, keys] = [step.rows, step.keys].map(([from, end]) => `${from} to ${end - 1}`);
    const where = `Tile ${k}: queries ${rows}, keys ${keys}. `;
    return where + (moved.length
      ? `A larger maximum for ${moved.join(', ')}: s and every number of o are multiplied by the factor first.`
      : 'No query that had seen keys meets a larger maximum: nothing is rescaled.');
  }

  function showOutputs(k) {
    const states = k ? run.steps[k - 1].after : run.steps.length ? run.steps[0].before : null;
    const rows = run.q.map((_, i) => {
      const state = states ? states[i] : { m: -Infinity, s: 0, o: run.direct[i].o.map(() => 0) };
      const now = Explorer.attention.output(state);
      const gap = Math.max(...now.map((x, c) => Math.abs(x - run.direct[i].o[c])));
      return { cells: [`q${i}`, code(state.m), code(state.s), vector(now), vector(run.direct[i].o), brief(gap, 2)] };
    });
    tableRows($('attention-outputs'), ['', 'm', 's', 'o / s now', 'Direct attention', 'Apart by'], rows);
    const gaps = run.outputs.flatMap((o, i) => o.map((x, c) => Math.abs(x - run.direct[i].o[c])));
    const apart = Math.max(0, ...gaps);
    const many = run.skipped.length;
    const hidden = many ? ` Hidden by the mask and never made: ${count(many, 'tile', 'tiles')}.` : '';
    $('attention-end').textContent =
      `After ${count(run.steps.length, 'tile', 'tiles')} the outputs differ from direct attention by ${brief(apart, 2)} at most.${hidden}`;
  }

  const steps = transport($('attention-steps'), {
    key: 'tile', label: 'Steps through the tiles', count: () => (run ? run.steps.length : 0), page,
  });

  function render(settings, changed) {
    const options = {};
    let whole = true;
    for (const [key, [low, high]] of Object.entries(SIZES)) {
      options[key] = page.field(key, (t, name) => parseWhole(t, name, low, high));
      whole = whole && options[key] !== null;
    }
    if (!whole) return;
    options.causal = settings.causal === 'on';
    if (run === null || [...Object.keys(SIZES), 'causal'].some((key) => changed.has(key))) {
      run = { ...Explorer.attention.tiles(options), options };
    }
    const k = Math.min(Number(settings.tile), run.steps.length);
    showMatrix(k);
    showTile(k);
    showOutputs(k);
    steps.update();
  }

  page.panel([...Object.keys(SIZES), 'causal', 'tile'], render, steps.stop);
})();
