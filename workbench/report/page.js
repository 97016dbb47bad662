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
    if (!narrow || label.length <= 18) return label;
    return label.split(/(?<=,)|(?<=\()|(?= over )|\s/).reduce((rows, word) => {
      const last = rows[rows.length - 1];
      if (last !== undefined && last.length + word.length < 18) rows[rows.length - 1] = last + (/[,(]$/.test(last) ? '' : ' ') + word.trim();
      else rows.push(word.trim());
      return rows;
    }, []);
  }
  function tallest(spec, narrow) {
    return Math.max(1, ...spec.labels.map((label) => [].concat(lines(label, narrow)).length));
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

  // What the value axis must show: every value with its whiskers, and the mark.
  function bounds(spec) {
    const values = [];
    spec.series.forEach((series) => series.points.forEach((p) => {
      if (p !== null) [p.y, p.lo, p.hi].forEach((v) => { if (Number.isFinite(v) && (v > 0 || !spec.y_log)) values.push(v); });
    }));
    if (Number.isFinite(spec.mark)) values.push(spec.mark);
    return values.length === 0 ? null : [Math.min(...values), Math.max(...values)];
  }

  // The legend as text of the page: it wraps, and is never cut off.
  function legend(canvas, chart, spec) {
    const figure = canvas.closest('figure');
    figure.querySelectorAll('.legend').forEach((old) => old.remove());
    if (spec.series.length < 2) return;
    const list = document.createElement('ul');
    list.className = 'legend';
    spec.series.forEach((series, index) => {
      const set = chart.data.datasets[index];
      const item = document.createElement('li'), button = document.createElement('button'), swatch = document.createElement('span');
      swatch.style.background = series.line && !series.marks ? 'transparent' : set.backgroundColor;
      swatch.style.border = '2px ' + (series.line && !series.marks ? 'dashed ' : 'solid ') + set.borderColor;
      swatch.className = spec.kind === 'points' ? 'mark ' + set.pointStyle : 'mark';
      swatch.setAttribute('aria-hidden', 'true');
      button.type = 'button';
      button.setAttribute('aria-pressed', 'true');
      button.append(swatch, series.name);
      button.addEventListener('click', () => {
        const shown = !chart.isDatasetVisible(index);
        chart.setDatasetVisibility(index, shown);
        button.setAttribute('aria-pressed', String(shown));
        chart.update();
      });
      item.append(button);
      list.append(item);
    });
    canvas.parentNode.after(list);
  }

  function axisOf(title, log, ink, line, category, extent) {
    const axis = { title: { display: title !== '', text: title, color: ink }, ticks: { color: ink }, grid: { color: line } };
    if (!category) {
      axis.type = log ? 'logarithmic' : 'linear';
      if (!log) axis.beginAtZero = true;
      if (extent) { axis.suggestedMin = extent[0]; axis.suggestedMax = extent[1]; }
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
      const points = spec.kind === 'points';
      const bars = points ? 0 : spec.series.reduce((sum, series) => sum + series.points.filter((p) => p !== null).length, 0);
      // Many bars beside each other are none on a phone: they go down the page there.
      const turned = narrow && spec.kind === 'bars' && bars > 24;
      const across = spec.kind === 'bars_across' || turned;
      const extent = bounds(spec);
      const value = across && !turned ? [spec.x_title, spec.x_log] : [spec.y_title, spec.y_log];
      canvas.parentNode.style.height = (turned ? 5 + Math.max(0.45 * bars + spec.labels.length, 0.9 * tallest(spec, narrow) * spec.labels.length)
        : across ? Math.max(12, 4 + (narrow ? Math.max(2.6, 0.9 * tallest(spec, narrow)) : 1.6) * spec.labels.length) : narrow ? 20 : 24) + 'rem';
      const chart = new Chart(canvas, {
        type: points ? 'scatter' : 'bar',
        data: { labels: spec.labels.map((label) => lines(label, narrow)), datasets: spec.series.map((series, index) => dataset(spec, series, index)) },
        options: {
          animation: false, responsive: true, maintainAspectRatio: false, color: ink, mark: spec.mark,
          indexAxis: across ? 'y' : 'x',
          scales: {
            x: Object.assign(across ? axisOf(value[0], value[1], ink, line, false, extent)
              : axisOf(spec.x_title, spec.x_log, ink, line, !points, null),
              spec.x_ticks ? { ticks: { color: ink, stepSize: 1, callback: (v) => spec.x_ticks[v] || '' } } : {}),
            y: across ? axisOf(turned ? spec.x_title : spec.y_title, false, ink, line, true, null)
              : axisOf(value[0], value[1], ink, line, false, extent),
          },
          plugins: {
            legend: { display: false },
            tooltip: { callbacks: { afterLabel: (item) => item.dataset.notes[item.dataIndex] || '' } },
          },
        },
        plugins: [whiskers],
      });
      drawn.push(chart);
      legend(canvas, chart, spec);
    });
    document.documentElement.dataset.charts = String(drawn.length);
  }

  dark.addEventListener('change', draw);
  draw();
})();
