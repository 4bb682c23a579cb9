# A bar chart as SVG, readable on a light and on a dark page. Each line: a label,
# a tab, and the values of all rounds in rising order. The bar is their median,
# the whisker goes from the lowest to the highest. Variables: title, unit.

function escape(text) {
	gsub(/&/, "\\&amp;", text)
	gsub(/</, "\\&lt;", text)
	return text
}

# 1, 2 or 5 times a power of ten, at most about a quarter of the range
function step_of(range,    step) {
	for (step = 1; step < range / 4; step *= 10);
	for (; step > range / 4; step /= 10);
	return step * 5 <= range / 3 ? step * 5 : step * 2 <= range / 3 ? step * 2 : step
}

function number(value) {
	return value >= 100 ? sprintf("%d", value + 0.5) : sprintf("%.3g", value)
}

BEGIN { FS = "\t" }

{
	count = split($2, values, " ")
	label[NR] = escape($1)
	low[NR] = values[1]
	high[NR] = values[count]
	middle[NR] = count % 2 ? values[(count + 1) / 2] : (values[count / 2] + values[count / 2 + 1]) / 2
	if (values[count] + 0 > top)
		top = values[count] + 0
}

END {
	left = 250; width = 470; row = 26; head = 42
	height = head + NR * row + 34
	top = top > 0 ? top : 1
	step = step_of(top)
	printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 800 %d\" font-family=\"sans-serif\" font-size=\"13\">\n", height
	print "<style>text{fill:#222}.grid{stroke:#ccc}.bar{fill:#3b7dd8}.range{stroke:#222;stroke-width:1.5}" \
		"@media(prefers-color-scheme:dark){text{fill:#ddd}.grid{stroke:#555}.bar{fill:#4f8fe6}.range{stroke:#eee}}</style>"
	printf "<text x=\"8\" y=\"20\" font-size=\"15\" font-weight=\"bold\">%s</text>\n", escape(title)
	for (at = 0; at <= top * 1.001; at += step) {
		x = left + at / top * width
		printf "<line class=\"grid\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\"/>", x, head - 8, x, height - 30
		printf "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\" font-size=\"11\">%s</text>\n", x, height - 15, number(at)
	}
	printf "<text x=\"%d\" y=\"20\" text-anchor=\"end\" font-size=\"12\">%s</text>\n", 792, escape(unit)
	for (i = 1; i <= NR; i++) {
		y = head + (i - 1) * row
		from = left + low[i] / top * width
		to = left + high[i] / top * width
		printf "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>", left - 8, y + 14, label[i]
		printf "<rect class=\"bar\" x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"18\"/>", left, y, middle[i] / top * width
		printf "<line class=\"range\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\"/>", from, y + 9, to, y + 9
		printf "<text x=\"%.1f\" y=\"%d\">%s</text>\n", to + 6, y + 14, number(middle[i])
	}
	print "</svg>"
}
