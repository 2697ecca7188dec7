// What the reader has chosen: read from the controls and from the address, kept in both, told to the panels.
//
// Settings are texts, by key; a control names its key in data-key. The part of the address after # holds those that
// are not the defaults, so that a link to it opens the page as it is.
(function () {
  'use strict';
  const Explorer = (globalThis.Explorer = globalThis.Explorer || {});
  const { $ } = Explorer.dom;
  const DEFAULTS = {
    row: '1, 3, 2, 5, -inf, 4, 8, 6', format: 'float16', guard: 'on', step: '4', cuts: '4', order: 'left',
    rows: '8192', columns: '4096', dtype: 'float32', device: 'h100', allocate: 'off', resident: '',
    bandwidth: '2000', ridge: '35', cache: '256',
    queries: '6', keys: '8', width: '2', tileQueries: '2', tileKeys: '4', causal: 'on', seed: '1', tile: '2',
    theme: 'system',
  };
  // Positions, which no control in the page names by data-key.
  const PLACES = { step: /^\d{1,6}$/, tile: /^\d{1,6}$/, cuts: /^\d{1,6}(,\d{1,6}){0,2}$/ };
  const settings = { ...DEFAULTS };
  const panels = [];
  let started = false;
  let written = null;

  const controls = () => document.querySelectorAll('[data-key]');
  const valueOf = (control) => (control.type === 'checkbox' ? (control.checked ? 'on' : 'off') : control.value);

  function reflect(control) {
    const value = settings[control.dataset.key];
    if (control.type === 'checkbox') control.checked = value === 'on';
    else if (control.value !== value) control.value = value;
  }

  function write() {
    const kept = Object.entries(settings).filter(([key, value]) => value !== DEFAULTS[key]);
    written = `#${new URLSearchParams(kept)}`;
    history.replaceState(null, '', kept.length ? written : '#');
  }

  /** Take over new settings, and let every panel that one of them concerns show itself. */
  function set(changes) {
    const changed = new Set(Object.keys(changes).filter((key) => settings[key] !== changes[key]));
    if (!changed.size) return;
    Object.assign(settings, changes);
    for (const control of controls()) if (changed.has(control.dataset.key)) reflect(control);
    if (!started) return;
    write();
    show(changed);
  }

  function show(changed) {
    document.documentElement.dataset.theme = settings.theme;
    for (const { keys, render } of panels) if (keys.some((key) => changed.has(key))) render(settings, changed);
  }

  /** A panel: shown again when a setting of `keys` changes; reset is called where its row or link is another. */
  function panel(keys, render, reset = () => {}) {
    panels.push({ keys: [...keys, 'screen'], render, reset });
  }

  /** The setting as parse(text, name) has it. Where that throws a RangeError its words go to the page: null then. */
  function field(key, parse) {
    const control = document.querySelector(`[data-key="${key}"]`);
    const place = $(`error-${key}`);
    let value = null;
    let words = '';
    try {
      value = parse(settings[key], control.dataset.name || key);
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      words = error.message;
    }
    if (place.textContent !== words) place.textContent = words;
    control.setAttribute('aria-invalid', words ? 'true' : 'false');
    return value;
  }

  /** The settings of a new row: all of it seen, cut in the middle. */
  function wholeRow(row) {
    try {
      const n = Explorer.row.parseRow(row).length;
      return { row, step: String(n), cuts: String(Math.floor(n / 2)) };
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      return { row };
    }
  }

  function choices(control) {
    if (control.type === 'checkbox') return ['on', 'off'];
    return control.tagName === 'SELECT' ? Array.from(control.options, (option) => option.value) : null;
  }

  /** What the address asks for; what it asks for in vain is told. */
  function readAddress() {
    const asked = { ...DEFAULTS };
    const vain = [];
    for (const [key, value] of new URLSearchParams(location.hash.slice(1))) {
      const control = document.querySelector(`[data-key="${key.replace(/\W/g, '')}"]`);
      const some = control && choices(control);
      const place = Object.hasOwn(PLACES, key) ? PLACES[key] : null;
      const known = place ? place.test(value) : control && (!some || some.includes(value));
      if (known) asked[key] = value;
      else {
        const none = place ? 'whole numbers would do' : 'there is no such setting';
        const would = some ? `${some.join(', ')} would do` : none;
        vain.push(`${key.slice(0, 40)}="${value.slice(0, 40)}": ${would}.`);
      }
    }
    $('notice').textContent = vain.length ? `Not all of the address was understood. ${vain.join(' ')}` : '';
    return asked;
  }

  function listen() {
    for (const control of controls()) {
      const { key } = control.dataset;
      const kind = control.type === 'checkbox' || control.tagName === 'SELECT' ? 'change' : 'input';
      control.addEventListener(kind, () => {
        for (const one of panels) if (one.keys.includes(key)) one.reset();
        const value = valueOf(control);
        set(key === 'row' ? wholeRow(value) : { [key]: value });
      });
    }
    addEventListener('hashchange', () => {
      if (location.hash !== written) set(readAddress());
    });
    // Pictures are drawn to measure. Only another width is another measure: phones change the height by scrolling.
    let wide = innerWidth;
    addEventListener('resize', () => {
      if (innerWidth !== wide) show(new Set(['screen']));
      wide = innerWidth;
    });
    for (const link of document.querySelectorAll('a[data-to]')) {
      link.addEventListener('click', (event) => {
        event.preventDefault();
        const section = $(link.dataset.to);
        section.scrollIntoView();
        section.querySelector('h2').focus({ preventScroll: true });
      });
    }
  }

  function start() {
    listen();
    set(readAddress());
    controls().forEach(reflect);
    started = true;
    show(new Set(Object.keys(settings)));
  }

  Explorer.page = { settings, set, panel, field, wholeRow, start, DEFAULTS };
})();
