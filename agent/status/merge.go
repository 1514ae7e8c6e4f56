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

// The reasons why something of a source is left out, as in outrider_scrape_dropped_total.
const (
	dropMalformed = "malformed"        // a family that cannot be parsed
	dropType      = "type-conflict"    // a family of a name that has another type already
	dropRepeated  = "repeated-family"  // a family that came before from the same source
	dropDuplicate = "duplicate-sample" // a sample whose name and labels were there already
	dropEncoding  = "unencodable"      // a family that the scraper's format cannot say
)

// merged writes families of several sources, each name once. One source is streamed; the others are
// held until their name comes by, and written after it.
type merged struct {
	out         io.Writer
	buffer      bytes.Buffer // one encoded family: written whole or not at all
	encoder     expfmt.Encoder
	escaping    model.EscapingScheme
	openMetrics bool
	held        []heldSource        // in order of precedence, all after the streamed one
	written     map[string]struct{} // keys
	dropped     func(source, reason string, count int)
	parser      familyParser // of texts
}

func newMerged(out io.Writer, format expfmt.Format, dropped func(source, reason string, count int)) *merged {
	m := &merged{out: out, escaping: format.ToEscapingScheme(), openMetrics: format.FormatType() == expfmt.TypeOpenMetrics,
		written: map[string]struct{}{}, dropped: dropped}
	m.encoder = expfmt.NewEncoder(&m.buffer, format)
	return m
}

type heldSource struct {
	name     string
	families map[string]heldFamily // by key
}

// heldFamily is a family of a source that is held. That of the application is its text, which takes
// a small part of the memory.
type heldFamily struct {
	family *dto.MetricFamily // nil: it is texts
	name   string
	texts  [][]byte // of families of that name; they may have others too
}

// key is what must be unique in the output: the name as it is written. In OpenMetrics a counter
// x_total is the family x.
func (m *merged) key(family *dto.MetricFamily) string {
	name := model.EscapeName(family.GetName(), m.escaping)
	if m.openMetrics && family.GetType() == dto.MetricType_COUNTER {
		return strings.TrimSuffix(name, "_total")
	}
	return name
}

// hold keeps a source's families for later. Samples of a family that came twice are put together.
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

// holdText adds a family to a source that will be held, as text.
func (m *merged) holdText(held heldSource, family *dto.MetricFamily, text []byte) {
	key := m.key(family)
	all, ok := held.families[key]
	if ok && all.name != family.GetName() { // of another type, as keys are the names of OpenMetrics
		m.dropped(held.name, dropType, 1)
		return
	}
	held.families[key] = heldFamily{name: strings.Clone(family.GetName()), texts: append(all.texts, bytes.Clone(text))}
}

// get returns a family that is held.
func (m *merged) get(source string, held heldFamily) *dto.MetricFamily {
	if held.family != nil {
		return held.family
	}
	var first *dto.MetricFamily
	for _, text := range held.texts {
		families, _ := m.parser.parse(text) // it was parsed before
		switch family := families[held.name]; {
		case first == nil:
			first = family
		case family != nil:
			m.join(first, family, source)
		}
	}
	return first
}

// write writes a family of the streamed source, with what the held ones have of the same name. The
// error is of the connection to the scraper.
func (m *merged) write(source string, family *dto.MetricFamily) error {
	key := m.key(family)
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

// rest writes what no streamed family took along.
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

// join adds the samples of a later source to a family; one of another type is left out as a whole.
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

// labelKey is the same for the same labels in any order.
func labelKey(metric *dto.Metric) string {
	pairs := make([]string, 0, len(metric.Label))
	for _, label := range metric.Label {
		pairs = append(pairs, label.GetName()+"\xff"+label.GetValue())
	}
	slices.Sort(pairs)
	return strings.Join(pairs, "\xfe")
}

// encode writes one family or, if the format cannot say it, nothing of it.
func (m *merged) encode(source string, family *dto.MetricFamily) error {
	m.buffer.Reset()
	if err := m.encoder.Encode(family); err != nil {
		m.dropped(source, dropEncoding, 1)
		return nil //nolint:nilerr // it is counted; the other families go on
	}
	_, err := m.out.Write(m.buffer.Bytes())
	return err
}

// end writes what the format ends with.
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
