"""The overview: what the engines do now and did in the last minutes, for whoever looks.

readings         from reports to figures that move: what was served, the gap, how even it is
sampler          the one that asks the engines, for all pages together
served_history   what every tenant was served at a moment, kept small
view, charts     what of it somebody sees
newest           what many look at, made once
"""
