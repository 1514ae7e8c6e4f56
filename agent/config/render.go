package config

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// brief renders a value as TOML, truncated to 60 characters.
func brief(value any) string {
	const longest = 60
	text := render(value)
	if utf8.RuneCountInString(text) > longest {
		return string([]rune(text)[:longest]) + "…"
	}
	return text
}

// RenderTOML returns a value as TOML.
func RenderTOML(value any) string { return render(value) }

// render returns a value as TOML. It accepts the types of convert and of the TOML parser.
func render(value any) string {
	switch value := value.(type) {
	case string:
		return quote(value)
	case time.Duration:
		return quote(renderDuration(value))
	case float64:
		return renderFloat(value)
	case time.Time:
		return renderTime(value)
	case []string:
		return renderList(value)
	case []int:
		return renderList(value)
	case []any:
		return renderList(value)
	case []map[string]any:
		return renderList(value)
	case Ports:
		if value.All {
			return `["*"]`
		}
		if value.Auto {
			return `["auto"]`
		}
		return renderList(value.List)
	case Addresses:
		switch len(value) {
		case 0:
			return quote("")
		case 1:
			return quote(value[0])
		}
		return renderList(value)
	case map[string]string:
		return renderTable(value)
	case map[string]any:
		return renderTable(value)
	default:
		return fmt.Sprint(value)
	}
}

func renderList[T any](list []T) string {
	items := make([]string, len(list))
	for i, item := range list {
		items[i] = render(item)
	}
	return "[" + strings.Join(items, ", ") + "]"
}

func renderTable[T any](table map[string]T) string {
	if len(table) == 0 {
		return "{}"
	}
	items := make([]string, 0, len(table))
	for _, name := range sortedKeys(table) {
		items = append(items, bareOrQuoted(name)+" = "+render(table[name]))
	}
	return "{ " + strings.Join(items, ", ") + " }"
}

// renderDuration is like Duration.String but omits zero units: 5m, not 5m0s.
func renderDuration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

func renderFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	text := strconv.FormatFloat(f, 'g', -1, 64)
	if !strings.ContainsAny(text, ".e") {
		text += ".0"
	}
	return text
}

// renderTime renders TOML's four kinds of dates and times. For the three kinds without an offset,
// the TOML parser sets the location's name to datetime-local, date-local or time-local.
func renderTime(t time.Time) string {
	switch t.Location().String() {
	case "datetime-local":
		return t.Format("2006-01-02T15:04:05.999999999")
	case "date-local":
		return t.Format("2006-01-02")
	case "time-local":
		return t.Format("15:04:05.999999999")
	default:
		return t.Format(time.RFC3339Nano)
	}
}

// quote returns s as a basic TOML string.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\r':
			b.WriteString(`\r`)
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

func sortedKeys[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }
