package status

import (
	"bytes"
	"io"
	"maps"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Values of the label reason in outrider_scrape_dropped_total.
const (
	dropMalformed = "malformed"        // a family that cannot be parsed
	dropType      = "type-conflict"    // a family whose name already has another type
	dropRepeated  = "repeated-family"  // a second family of the same name
	dropDuplicate = "duplicate-sample" // a sample whose name and labels exist already
	dropEncoding  = "unencodable"      // a family that the scraper's format cannot represent
)

// merged writes the metric families of several sources such that each name occurs once. The
// families of one source are streamed. Those of the other sources are held until a streamed family
// has the same name, or the stream ends.
type merged struct {
	out         io.Writer
	buffer      bytes.Buffer // one encoded family, so that it is written completely or not at all
	encoder     expfmt.Encoder
	escaping    model.EscapingScheme
	openMetrics bool
	held        []heldSource        // in order of precedence; the streamed source precedes all
	written     map[string]struct{} // families written so far, by result of the method key
	dropped     func(source, reason string, count int)
	parser      familyParser // parses held texts
}

func newMerged(
	out io.Writer, format expfmt.Format, dropped func(source, reason string, count int),
) *merged {
	m := &merged{out: out, escaping: format.ToEscapingScheme(),
		openMetrics: format.FormatType() == expfmt.TypeOpenMetrics,
		written:     map[string]struct{}{}, dropped: dropped}
	m.encoder = expfmt.NewEncoder(&m.buffer, format)
	return m
}

type heldSource struct {
	name     string
	families map[string]heldFamily // by result of merged.key
}

// heldFamily is a family of a held source. Families of the application are held as text, which
// needs much less memory than parsed samples.
type heldFamily struct {
	family *dto.MetricFamily // nil if texts is set
	name   string
	texts  [][]byte // each contains a family named name, and possibly others
}

// key returns the name of a family in the output, which must be unique. In OpenMetrics a counter
// x_total is the family x.
func (m *merged) key(family *dto.MetricFamily) string {
	name := model.EscapeName(family.GetName(), m.escaping)
	if m.openMetrics && family.GetType() == dto.MetricType_COUNTER {
		return strings.TrimSuffix(name, "_total")
	}
	return name
}

// hold adds the families of a source to those that are held. Samples of families with the same name
// are merged.
func (m *merged) hold(source string, families []*dto.MetricFamily) {
	held := heldSource{name: source, families: make(map[string]heldFamily, len(families))}
	for _, family := range families {
		key := m.key(family)
		if first, ok := held.families[key]; ok {
			m.join(first.family, family, source)
			continue
		}
		held.families[key] = heldFamily{family: family}
	}
	m.held = append(m.held, held)
}

// holdText adds a family to a source as text.
func (m *merged) holdText(held heldSource, family *dto.MetricFamily, text []byte) {
	key := m.key(family)
	all, ok := held.families[key]
	// the key is the same, but one is the counter x_total and the other one x, of another type
	if ok && all.name != family.GetName() {
		m.dropped(held.name, dropType, 1)
		return
	}
	held.families[key] = heldFamily{name: strings.Clone(family.GetName()),
		texts: append(all.texts, bytes.Clone(text))}
}

// get returns a held family, parsed.
func (m *merged) get(source string, held heldFamily) *dto.MetricFamily {
	if held.family != nil {
		return held.family
	}
	var first *dto.MetricFamily
	for _, text := range held.texts {
		families, _ := m.parser.parse(text) // no error: the text was parsed before
		switch family := families[held.name]; {
		case first == nil:
			first = family
		case family != nil:
			m.join(first, family, source)
		}
	}
	return first
}

// write writes a family of the streamed source together with the held ones of the same name. It
// returns only errors of the connection to the scraper.
func (m *merged) write(source string, family *dto.MetricFamily) error {
	key := m.key(family)
	if _, ok := m.written[key]; ok && m.openMetrics && family.GetType() == dto.MetricType_COUNTER {
		// Envoy has both a counter upstream_rq, by response code, and a counter upstream_rq_total.
		// In OpenMetrics they would be one family.
		family = untyped(family)
		key = m.key(family)
	}
	if _, ok := m.written[key]; ok {
		m.dropped(source, dropRepeated, 1)
		return nil
	}
	for _, held := range m.held {
		if more, ok := held.families[key]; ok {
			m.join(family, m.get(held.name, more), held.name)
			delete(held.families, key)
		}
	}
	m.written[key] = struct{}{}
	return m.encode(source, family)
}

// untyped returns a counter as a family without a type, whose name keeps its _total in OpenMetrics.
func untyped(counter *dto.MetricFamily) *dto.MetricFamily {
	out := &dto.MetricFamily{Name: counter.Name, Help: counter.Help,
		Type: dto.MetricType_UNTYPED.Enum()}
	for _, metric := range counter.Metric {
		out.Metric = append(out.Metric, &dto.Metric{Label: metric.Label,
			TimestampMs: metric.TimestampMs,
			Untyped:     &dto.Untyped{Value: metric.Counter.Value}})
	}
	return out
}

// rest writes the held families that no streamed family has included.
func (m *merged) rest() error {
	for i, held := range m.held {
		for _, key := range slices.Sorted(maps.Keys(held.families)) {
			if _, ok := m.written[key]; ok {
				m.dropped(held.name, dropRepeated, 1)
				continue
			}
			family := m.get(held.name, held.families[key])
			for _, later := range m.held[i+1:] {
				if more, ok := later.families[key]; ok {
					m.join(family, m.get(later.name, more), later.name)
					delete(later.families, key)
				}
			}
			m.written[key] = struct{}{}
			if err := m.encode(held.name, family); err != nil {
				return err
			}
		}
	}
	return nil
}

// join appends the samples of more to family and drops duplicates. If name or type differ, it drops
// more completely.
func (m *merged) join(family, more *dto.MetricFamily, source string) {
	if family.GetType() != more.GetType() || family.GetName() != more.GetName() {
		m.dropped(source, dropType, 1)
		return
	}
	if family.GetHelp() == "" && more.GetHelp() != "" {
		family.Help = more.Help
	}
	seen := make(map[string]struct{}, len(family.Metric))
	for _, metric := range family.Metric {
		seen[labelKey(metric)] = struct{}{}
	}
	duplicates := 0
	for _, metric := range more.Metric {
		key := labelKey(metric)
		if _, ok := seen[key]; ok {
			duplicates++
			continue
		}
		seen[key] = struct{}{}
		family.Metric = append(family.Metric, metric)
	}
	if duplicates > 0 {
		m.dropped(source, dropDuplicate, duplicates)
	}
}

// labelKey returns a key that is equal for equal labels in any order.
func labelKey(metric *dto.Metric) string {
	pairs := make([]string, 0, len(metric.Label))
	for _, label := range metric.Label {
		pairs = append(pairs, label.GetName()+"\xff"+label.GetValue())
	}
	slices.Sort(pairs)
	return strings.Join(pairs, "\xfe")
}

// encode writes one family, or drops it if the format cannot represent it.
func (m *merged) encode(source string, family *dto.MetricFamily) error {
	m.buffer.Reset()
	if err := m.encoder.Encode(family); err != nil {
		m.dropped(source, dropEncoding, 1)
		return nil //nolint:nilerr // counted; other families follow
	}
	_, err := m.out.Write(m.buffer.Bytes())
	return err
}

// end writes the trailer of the format.
func (m *merged) end() error {
	m.buffer.Reset()
	if closer, ok := m.encoder.(expfmt.Closer); ok {
		if err := closer.Close(); err != nil {
			return err
		}
	}
	_, err := m.out.Write(m.buffer.Bytes())
	return err
}
