// Draws the charts of a report from the JSON beside it. Everything drawn also stands in a table, so a
// reader without scripts or without eyes loses nothing.
(function () {
  'use strict';
  const specs = JSON.parse(document.getElementById('charts').textContent);
  const dark = window.matchMedia('(prefers-color-scheme: dark)');
  // Okabe and Ito's palette: told apart with every common kind of colour blindness. Beyond eight series
  // the form of the mark and of the line tells them apart too.
  const palette = ['#0072b2', '#e69f00', '#009e73', '#cc79a7', '#56b4e9', '#d55e00', '#b8a800', '#888888'];
  const forms = ['circle', 'rect', 'triangle', 'rectRot', 'cross', 'star', 'rectRounded', 'crossRot'];
  const drawn = [];

  // Whiskers from lo to hi of every point, and a line at the chart's mark.
  const whiskers = {
    id: 'whiskers',
    afterDatasetsDraw(chart) {
      const context = chart.ctx;
      const across = chart.options.indexAxis === 'y';
      const axis = across ? chart.scales.x : chart.scales.y;
      const inside = chart.chartArea;
      context.save();
      context.beginPath();
      context.rect(inside.left, inside.top, inside.right - inside.left, inside.bottom - inside.top);
      context.clip();
      context.strokeStyle = chart.options.color;
      context.lineWidth = 1;
      chart.data.datasets.forEach((set, index) => {
        if (!set.intervals || !chart.isDatasetVisible(index)) return;
        chart.getDatasetMeta(index).data.forEach((element, at) => {
          const interval = set.intervals[at];
          if (!interval) return;
          const lo = axis.getPixelForValue(interval[0]), hi = axis.getPixelForValue(interval[1]);
          context.beginPath();
          if (across) {
            context.moveTo(lo, element.y); context.lineTo(hi, element.y);
            [lo, hi].forEach((x) => { context.moveTo(x, element.y - 4); context.lineTo(x, element.y + 4); });
          } else {
            context.moveTo(element.x, lo); context.lineTo(element.x, hi);
            [lo, hi].forEach((y) => { context.moveTo(element.x - 4, y); context.lineTo(element.x + 4, y); });
          }
          context.stroke();
        });
      });
      const mark = chart.options.mark;
      if (mark !== null && mark >= axis.min && mark <= axis.max) {
        const at = axis.getPixelForValue(mark), area = chart.chartArea;
        context.setLineDash([6, 4]);
        context.beginPath();
        if (across) { context.moveTo(at, area.top); context.lineTo(at, area.bottom); }
        else { context.moveTo(area.left, at); context.lineTo(area.right, at); }
        context.stroke();
      }
      context.restore();
    },
  };

  // Long labels would push the bars off a phone.
  function lines(label, narrow) {
    return narrow && label.length > 18 ? label.split(/(?<=,) | (?=over )/) : label;
  }

  function dataset(spec, series, index) {
    const colour = palette[index % palette.length];
    const form = forms[Math.floor(index / palette.length) % forms.length];
    const points = series.points;
    const value = (p) => (p === null ? null : spec.kind === 'points' ? { x: p.x, y: p.y } : p.y);
    return {
      label: series.name,
      skipNull: true,
      data: points.map(value),
      intervals: points.map((p) => (p && p.lo !== undefined && p.hi !== undefined ? [p.lo, p.hi] : null)),
      notes: points.map((p) => (p ? p.label : '')),
      // Bars of the second and third eight are hollow and pale, so that no two look alike.
      backgroundColor: spec.kind === 'points' || index < 8 ? colour : index < 16 ? 'transparent' : colour + '60',
      borderColor: colour,
      showLine: series.line,
      pointRadius: series.line && spec.kind === 'points' && !series.marks ? 0 : 5,
      pointStyle: spec.kind === 'points' ? forms[index % forms.length] : form,
      borderDash: series.line && !series.marks ? [4, 3] : [],
      borderWidth: spec.kind === 'points' || index >= 8 ? 2 : 0,
    };
  }

  function axisOf(title, log, ink, line, category) {
    const axis = { title: { display: title !== '', text: title, color: ink }, ticks: { color: ink }, grid: { color: line } };
    if (!category) {
      axis.type = log ? 'logarithmic' : 'linear';
      if (!log) axis.beginAtZero = true;
    }
    return axis;
  }

  function draw() {
    drawn.splice(0).forEach((chart) => chart.destroy());
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue('--ink').trim(), line = style.getPropertyValue('--line').trim();
    const narrow = window.innerWidth < 600;
    specs.forEach((spec) => {
      const canvas = document.getElementById('chart-' + spec.id);
      const across = spec.kind === 'bars_across', points = spec.kind === 'points';
      canvas.parentNode.style.height = (across ? Math.max(12, 4 + (narrow ? 2.6 : 1.6) * spec.labels.length)
        : (narrow ? 18 + spec.series.length : 24 + spec.series.length / 4)) + 'rem';
      drawn.push(new Chart(canvas, {
        type: points ? 'scatter' : 'bar',
        data: { labels: spec.labels.map((label) => lines(label, narrow)), datasets: spec.series.map((series, index) => dataset(spec, series, index)) },
        options: {
          animation: false, responsive: true, maintainAspectRatio: false, color: ink, mark: spec.mark,
          indexAxis: across ? 'y' : 'x',
          scales: {
            x: Object.assign(axisOf(spec.x_title, spec.x_log, ink, line, !across && !points),
              spec.x_ticks ? { ticks: { color: ink, stepSize: 1, callback: (v) => spec.x_ticks[v] || '' } } : {}),
            y: axisOf(spec.y_title, spec.y_log, ink, line, across),
          },
          plugins: {
            legend: { display: spec.series.length > 1, position: 'bottom', labels: { color: ink, usePointStyle: points, boxWidth: 12 } },
            tooltip: { callbacks: { afterLabel: (item) => item.dataset.notes[item.dataIndex] || '' } },
          },
        },
        plugins: [whiskers],
      }));
    });
    document.documentElement.dataset.charts = String(drawn.length);
  }

  dark.addEventListener('change', draw);
  draw();
})();
