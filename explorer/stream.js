// The row, its format, and the stream: what each step does to m and s.
(function () {
  'use strict';
  const Explorer = (globalThis.Explorer = globalThis.Explorer || {});
  const { $, el, tableRows, code, operations, transport } = Explorer.dom;
  const { text, brief, count, FORMATS } = Explorer.formats;
  const page = Explorer.page;
  const NAMES = ['drop of the maximum, m − m′', 'the factor', 's times the factor', 'distance, x − m′',
    'the new term', 'the new s'];
  const TABLE_ROWS = 16;
  let run = null;

  /** What happened in a step, as a sentence or two. */
  function told(step, k, format) {
    const t = (x) => text(x, format);
    const entry = `Entry ${k}, x = ${t(step.x)}: `;
    const { before, after } = step;
    if (Number.isNaN(after.s) && !Number.isNaN(before.s) && !Number.isNaN(step.x)) {
      return `${entry}the unguarded exponent takes an infinity from itself, which is not a number. ` +
        'From here on s is NaN, whatever follows. With the guard the pivot is 0 and nothing is lost.';
    }
    if (Number.isNaN(step.x)) return `${entry}a NaN taints m and s, and so all of the result. That is meant.`;
    if (Number.isNaN(before.s)) return `${entry}s is NaN already and stays so.`;
    if (after.m === Infinity) {
      return `${entry}the maximum is +inf and has no finite pivot: s now counts the entries that are +inf. ` +
        'The log-sum-exp is +inf, the probabilities are NaN.';
    }
    if (step.x === -Infinity) {
      const same = before.s === 0 ? 'the state of nothing stays as it is, thanks to the guard' : 'the state stays';
      return `${entry}exp(−inf) is 0, so ${same}.`;
    }
    if (before.m === -Infinity) return `${entry}the first maximum. Its own term is exp(0) = 1, so s = 1.`;
    return entry + (step.rose ? toldOfRescale(step, t) : toldOfTerm(step, t));
  }

  function toldOfRescale(step, t) {
    const { before, after } = step;
    const head = `a new maximum. The sum ${t(before.s)} was taken at ${t(before.m)}; it is multiplied by the factor ` +
      `exp(${t(before.m)} − ${t(after.m)}) = ${t(step.factor)} to be one at ${t(after.m)}, and 1 is added.`;
    if (step.wiped) return `${head} The product is too small for this format: all that was seen before vanishes.`;
    if (step.sumUnheard) return `${head} Beside 1 the rescaled sum is too small to change it: it goes unheard.`;
    return head;
  }

  function toldOfTerm(step, t) {
    const head = `no new maximum, so the factor is 1 and nothing is rescaled. The term exp(x − m) = ${t(step.term)}`;
    if (step.zero) return `${head}: too small for this format, it vanishes before it reaches the sum.`;
    if (step.termUnheard) {
      return `${head} is added, but beside ${t(step.moved)} it is too small: the sum stays as it is, the term is lost.`;
    }
    if (step.subnormal) return `${head} lies below the normal numbers and keeps fewer bits; it is added.`;
    return `${head} is added.`;
  }

  function relative(computed, truth) {
    if (computed === truth) return 0;
    const error = (computed - truth) / Math.abs(truth);
    return Number.isFinite(error) ? error : NaN;
  }

  /** A relative error with its size in units of roundoff. */
  function errorText(computed, truth, format) {
    if (Number.isNaN(computed) && Number.isNaN(truth)) return 'none: both NaN';
    const error = relative(computed, truth);
    if (Number.isNaN(error)) return 'none: no finite value';
    if (error === 0) return '0';
    return `${brief(error)} (${brief(Math.abs(error) * 2 ** format.precision, 2)} u)`;
  }

  function showState(k) {
    const { format } = run;
    const state = k ? run.steps[k - 1].after : Explorer.state.identity();
    const truth = k ? run.truth[k - 1] : Explorer.state.identity();
    const wide = Explorer.formats.arithmetic(FORMATS.float64);
    const lse = Explorer.state.lse(state, Explorer.formats.arithmetic(format));
    const trueLse = Explorer.state.lse(truth, wide);
    const gap = lse === trueLse ? 0 : lse - trueLse;
    const apart = Number.isFinite(gap) ? brief(gap) : `none: ${Number.isNaN(trueLse) ? 'both NaN' : 'no finite value'}`;
    const rows = [
      ['m, the maximum', state.m, truth.m, errorText(state.m, truth.m, format)],
      ['s, the sum', state.s, truth.s, errorText(state.s, truth.s, format)],
      ['log-sum-exp', lse, trueLse, apart],
    ];
    tableRows($('stream-state'), ['', 'Computed', 'Truth', 'Error'], rows.map(([name, computed, truthful, error], i) => ({
      cells: [name, code(computed, format), code(truthful), error],
      className: i < 2 && Number.isNaN(computed) && !Number.isNaN(truthful) ? 'bad' : null,
    })));
  }

  function showStep(k) {
    const step = k ? run.steps[k - 1] : null;
    $('stream-told').textContent = step
      ? told(step, k - 1, run.format)
      : 'Nothing seen yet: the state is (−inf, 0), which changes no other state when merged with it.';
    $('stream-factor').textContent = step ? text(step.factor, run.format) : 'none yet';
    operations($('stream-ops'), step ? step.ops : [], run.format, NAMES);
    const events = run.events.filter((event) => event.index < k && event.stop > 0);
    $('stream-count').textContent = String(events.length);
    $('stream-events').replaceChildren(...events.slice(-TABLE_ROWS).map((event) =>
      el('li', {}, `entry ${event.index}: maximum `, code(event.maximum, run.format), ', factor ',
        code(event.factor, run.format), ', s ', code(event.before, run.format), ' → ',
        code(event.after, run.format))));
  }

  /** How an entry's bar is coloured once k entries are in. */
  function classOf(k) {
    const upTo = run.steps.slice(0, k);
    const wiped = upTo.findLastIndex((step) => step.wiped);
    const unheard = upTo.findLastIndex((step) => step.sumUnheard);
    return (i) => {
      if (i >= k) return 'unseen';
      const gone = run.zeros[i] || i < wiped;
      const lost = gone ? ' gone' : run.steps[i].termUnheard || i < unheard ? ' unheard' : '';
      return `seen${i === k - 1 ? ' current' : ''}${lost}`;
    };
  }

  function showLosses() {
    const of = (marked, one, many) => count(marked.filter(Boolean).length, one, many);
    const lines = [
      `${of(run.zeros, 'exponential', 'exponentials')} became 0 and ${of(run.vanished, 'entry', 'entries')} went to 0 in ` +
        'a rescale: ' +
        `${brief(100 * run.lost.underflow)} % of the true sum.`,
      `${count(run.stalled, 'addition', 'additions')} changed nothing: ${brief(100 * run.lost.stalling)} % of the true sum.`,
      `${of(run.subnormals, 'exponential', 'exponentials')} below the normal numbers, with fewer bits.`,
    ];
    if (Number.isNaN(run.state.s)) lines.splice(0, 3, 'The sum is NaN in the end: there is nothing left to lose.');
    const rounded = run.held.filter((x, i) => !Object.is(x, run.given[i])).length;
    if (rounded) lines.push(`${count(rounded, 'entry', 'entries')} rounded first, to numbers of ${run.format.name}.`);
    $('stream-losses').replaceChildren(...lines.map((line) => el('li', {}, line)));
  }

  function showProbabilities() {
    const rows = run.y.slice(0, TABLE_ROWS).map((y, i) => ({
      cells: [`${i}: ${text(run.held[i], run.format)}`, code(y, run.format), code(run.trueY[i]),
        Number.isFinite(y - run.trueY[i]) ? brief(y - run.trueY[i]) : 'none: no finite value'],
    }));
    tableRows($('stream-values'), ['', 'Computed', 'Truth', 'Error'], rows);
    const left = run.y.length - TABLE_ROWS;
    $('stream-more').textContent = left > 0 ? `Not shown: ${count(left, 'further entry', 'further entries')}.` : '';
  }

  function show(settings) {
    const k = Math.min(Number(settings.step), run.steps.length);
    Explorer.charts.rowChart($('stream-chart'), {
      row: run.held, classOf: classOf(k), label: `The row of ${run.held.length} entries, ${k} of them seen`,
    });
    showState(k);
    showStep(k);
    steps.update();
  }

  const steps = transport($('stream-steps'), {
    key: 'step', label: 'Steps through the stream', count: () => (run ? run.steps.length : 0), page,
  });

  function render(settings, changed) {
    const row = page.field('row', Explorer.row.parseRow);
    if (row === null) return;
    if (run === null || ['row', 'format', 'guard'].some((key) => changed.has(key))) {
      run = Explorer.follow.follow(row, settings.format, settings.guard === 'on');
      showLosses();
      showProbabilities();
    }
    show(settings);
  }

  for (const preset of Explorer.row.PRESETS) $('presets').append(el('option', { value: preset.name }, preset.name));
  $('presets').addEventListener('change', (event) => {
    const preset = Explorer.row.PRESETS.find((one) => one.name === event.target.value);
    event.target.value = '';
    if (preset) page.set({ format: preset.format, ...page.wholeRow(preset.row) });
  });
  page.panel(['row', 'format', 'guard', 'step'], render, steps.stop);
})();
