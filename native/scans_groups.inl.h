// Log-sum-exps and softmax of small groups of neighbours, up to kScanBlock elements at once. Included by scans.inl.h.
//
// A group of a few elements does not fill a register. So what can be done side by side is: the exponentials of a block,
// whatever groups they are of, and the logarithms of the groups. Maxima and sums go element by element.

template <class T>
void scan_groups(const ScanGroups& job) {
  ScanBuffers b;
  alignas(64) double m[kScanBlock], t[kScanBlock];
  int64_t top[kScanBlock];
  const int64_t *ends = job.offsets + 1, start = job.offsets[0], n = job.offsets[job.count] - start;
  const int64_t padded = (n + kScanGrain - 1) / kScanGrain * kScanGrain;
  widen_run((const T*)job.x, b.x, n);
  for (int64_t g = 0, i = 0; g < job.count; ++g) {
    const int64_t first = i, end = ends[g] - start;
    double greatest = -kInf, sum = 0;
    int64_t at = first;
    for (; i < end; ++i) {
      at = b.x[i] > greatest ? i : at;
      greatest = b.x[i] > greatest ? b.x[i] : greatest;
      sum += b.x[i];  // NaN where one is
    }
    bool nan = false;
    if (sum != sum)
      for (i = first; i < end; ++i) nan |= b.x[i] != b.x[i];
    m[g] = nan ? __builtin_nan("") : greatest, top[g] = at;
    const bool finite = greatest > -kInf && greatest < kInf && !nan;
    for (i = first; i < end; ++i) b.e[i] = finite ? b.x[i] - greatest : -kInf;
    if (first < end) b.e[at] = -kInf;  // the greatest is the 1 of s = 1 + t
  }
  for (int64_t i = n; i < padded; ++i) b.e[i] = -kInf;
  exp_block(b.e, padded);
  for (int64_t g = 0, i = 0; g < job.count; ++g) {
    double sum = 0;
    for (; i < ends[g] - start; ++i) sum += b.e[i];
    t[g] = sum;
  }
  if (job.lse) {
    const int64_t groups = (job.count + kScanGrain - 1) / kScanGrain * kScanGrain;
    for (int64_t g = job.count; g < groups; ++g) m[g] = t[g] = 0;
    finish_block(m, t, b.t, groups);
    for (int64_t g = 0; g < job.count; ++g) job.lse[g] = b.t[g];
  }
  if (!job.y) return;
  for (int64_t g = 0, i = 0; g < job.count; ++g) {
    if (i == ends[g] - start) continue;
    const double s = 1.0 + t[g] + (m[g] - m[g]), inverse = 1.0 / s, low = inverse * __builtin_fma(-inverse, s, 1.0);
    b.e[top[g]] = 1.0;
    for (; i < ends[g] - start; ++i) b.t[i] = __builtin_fma(b.e[i], inverse, b.e[i] * low);
  }
  narrow_run(b.t, (T*)job.y, n);
}
