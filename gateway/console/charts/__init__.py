"""The console's charts: lines and stacks over time, and bars, drawn as SVG on the server.

Each is one HTML figure: a title, the picture, a legend, and the figures as a table that opens. Nothing in it needs a
script or a style of its own, so it works under the console's content security policy, on paper, and with a screen
reader. Libraries whose scripts come in a Python wheel were tried first, in headless Chromium under `style-src 'self'`:
Bokeh 3.9 puts style elements into its shadow roots, all of which are refused, and lays itself out again for ever
(65,000 violations in minutes, nothing drawn; it also imports NumPy, which the gateway must not). Plotly 7.1 draws, but
its layers fall apart, and legend and title are lost, unless two hashes of that very release are allowed; its script is
4.8 MB (1.5 MB packed) and the wheel 64 MB installed, for three kinds of charts.

    chart = line_chart(Frame("share", "Share of each team", SHARES), [Series("acme/search", points)])

In a template `{{ chart }}` is the figure, `{{ chart.picture }}` the part to replace while a page is live.

scale     round steps for values and times, and how figures read
marks     the parts that charts are drawn of: grid, axes, legend, the table behind the picture
figure    what is around every chart, and the canvas over time
drawing   the kinds of charts
"""

from gateway.console.charts.drawing import Bar, bar_chart, line_chart, share_bar, stacked_chart
from gateway.console.charts.figure import Chart, Frame, Series

__all__ = ["Bar", "Chart", "Frame", "Series", "bar_chart", "line_chart", "share_bar", "stacked_chart"]
