// Bytes, flops, floors and regimes: the arithmetic of online_softmax.traffic, for operations on rows.
//
// Devices and the passes of each algorithm come from devices.js, which scripts/explorer_data.py makes from the library.
// All counts are whole numbers below 2^53, so that they are exact here too.
(function () {
  'use strict';
  const Explorer = (globalThis.Explorer = globalThis.Explorer || {});
  const { LINE, FLOPS_PER_EXP, PASSES, ITEMSIZES } = Explorer.data;

  // What the table compares: the ways to a softmax, and the one read that a log-sum-exp needs.
  const ALGORITHMS = [
    { key: 'naive', operation: 'softmax', algorithm: 'naive' },
    { key: 'three_pass', operation: 'softmax', algorithm: 'three_pass' },
    { key: 'online', operation: 'softmax', algorithm: 'online' },
    { key: 'cached', operation: 'softmax', algorithm: 'cached' },
    { key: 'logsumexp', operation: 'logsumexp', algorithm: 'online' },
  ];

  /** What an algorithm moves and computes for `rows` rows of `columns` elements, at least. */
  function traffic(operation, algorithm, { rows, columns, itemsize, allocate = false }) {
    const passes = PASSES[operation][algorithm];
    const elements = rows * columns;
    const data = elements * itemsize;
    const operands = [{ size: data, read: passes.reads * data, written: 0 }];
    if (passes.writes) operands.push({ size: data, read: 0, written: passes.writes * data });
    const numbers = rows * passes.statistics * (itemsize === 8 ? 8 : 4);
    if (numbers) operands.push({ size: numbers, read: 0, written: numbers });
    return summed(operands, allocate, {
      reads: passes.reads, writes: passes.writes, exps: passes.exps * elements, plainFlops: passes.flops * elements,
    });
  }

  function summed(operands, allocate, counts) {
    const sum = (of) => operands.reduce((total, operand) => total + of(operand), 0);
    const read = sum((o) => o.read);
    const written = sum((o) => o.written);
    const allocated = allocate ? sum((o) => Math.ceil(o.written / LINE) * LINE) : 0;
    const total = read + written + allocated;
    const flops = FLOPS_PER_EXP * counts.exps + counts.plainFlops;
    return { ...counts, operands, allocate, read, written, allocated, total, flops, intensity: flops / total };
  }

  /** The traffic that memory sees: with `kept`, every tensor at most once in each direction. */
  function fromMemory(moved, kept) {
    if (!kept) return moved;
    const least = (operand) => ({
      ...operand, read: Math.min(operand.read, operand.size), written: Math.min(operand.written, operand.size),
    });
    return summed(moved.operands.map(least), moved.allocate, {
      reads: moved.reads, writes: moved.writes, exps: moved.exps, plainFlops: moved.plainFlops,
    });
  }

  /** Least seconds by resource; 0 where its rate is not known. */
  function floor(moved, machine) {
    const at = (amount, rate) => (rate ? amount / rate : 0);
    const times = {
      memory: moved.total / machine.bandwidth,
      compute: at(machine.exp_rate ? moved.plainFlops : moved.flops, machine.vector_peak),
      exp: at(moved.exps, machine.exp_rate),
      launch: machine.launch || 0,
    };
    const seconds = Math.max(...Object.values(times));
    return { ...times, seconds, bound: Object.keys(times).find((name) => times[name] === seconds) };
  }

  /** Where rows lie while they are worked on, and the row size from which the passes decide. */
  function regime(rows, columns, itemsize, lastLevel, residentRows = null) {
    const resident = Math.min(residentRows === null ? rows : residentRows, rows);
    const row = columns * itemsize;
    let name = 'rows past cache';
    if (rows * row <= lastLevel) name = 'tensor in cache';
    else if (resident * row <= lastLevel) name = 'rows in cache';
    return {
      name, resident, row, tensor: rows * row, lastLevel,
      kept: name !== 'rows past cache', deciding: Math.floor(lastLevel / resident),
    };
  }

  /** A machine told by its bandwidth in bytes/s, its ridge in flop/byte and its cache in bytes (0: none). */
  const given = (bandwidth, ridge, lastLevel) => ({
    name: 'your own numbers', bandwidth, vector_peak: ridge * bandwidth, exp_rate: null, launch: null,
    last_level: lastLevel || null, units: null,
  });

  /** Every algorithm for a shape on a machine: traffic, floor, how much sooner than three_pass, the regime. */
  function compare(shape, machine, residentRows = null) {
    const where = machine.last_level
      ? regime(shape.rows, shape.columns, shape.itemsize, machine.last_level, residentRows)
      : null;
    const lines = ALGORITHMS.map(({ key, operation, algorithm }) => {
      const moved = traffic(operation, algorithm, shape);
      const once = fromMemory(moved, true);
      return { key, moved, floor: floor(moved, machine), once, onceFloor: floor(once, machine) };
    });
    const baseline = lines.find((line) => line.key === 'three_pass').floor.seconds;
    for (const line of lines) line.speedup = baseline / line.floor.seconds;
    return { shape, machine, lines, regime: where };
  }

  /** The floor of an algorithm at another length, rows in a cache being read once: what the curve shows. */
  function secondsAt(result, key, columns) {
    const { operation, algorithm } = ALGORITHMS.find((one) => one.key === key);
    const { shape, machine, regime: here } = result;
    const moved = traffic(operation, algorithm, { ...shape, columns });
    if (!here) return floor(moved, machine).seconds;
    const where = regime(shape.rows, columns, shape.itemsize, here.lastLevel, here.resident);
    return floor(fromMemory(moved, where.kept), machine).seconds;
  }

  Explorer.cost = { ALGORITHMS, ITEMSIZES, traffic, fromMemory, floor, regime, given, compare, secondsAt };
})();
