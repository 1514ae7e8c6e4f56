package status

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Limits in bytes of one line and of one metric family.
const (
	lineAtMost   = 1 << 20
	familyAtMost = 16 << 20
)

var (
	errLineTooLong    = fmt.Errorf("a line has more than %d bytes", lineAtMost)
	errFamilyTooLarge = fmt.Errorf("a metric family has more than %d bytes", familyAtMost)
	errSourceTooLarge = errors.New("the answer is too large")
	errManyFamilies   = errors.New("the answer has too many metric families")
)

// sourceLimits bounds what is read from a source of metrics (Envoy or the application) in one
// scrape. A parsed line needs about 300 bytes plus its text.
type sourceLimits struct {
	bytes    int64
	families int
	lines    int // per family
}

// eachFamily reads the text format (0.0.4) and calls each for every complete family, so that a
// large source is never held in memory as a whole. The text is valid until each returns. A family
// that cannot be parsed is passed to bad and skipped. The error is that of reading or of each; if
// the source exceeds its limits, it is errSourceTooLarge or errManyFamilies.
func eachFamily(
	source io.Reader, limits sourceLimits, each func(*dto.MetricFamily, []byte) error,
	bad func(error),
) error {
	limited := &io.LimitedReader{R: source, N: limits.bytes + 1}
	reader := bufio.NewReaderSize(limited, 64<<10)
	var name string
	var block bytes.Buffer
	var tooLarge bool
	var lines, count int
	parser := &familyParser{}
	finish := func() error {
		defer block.Reset()
		lines = 0
		if tooLarge {
			tooLarge = false
			bad(errFamilyTooLarge)
			return nil
		}
		if block.Len() == 0 {
			return nil
		}
		families, err := parser.parse(block.Bytes())
		if err != nil {
			bad(err)
			return nil
		}
		for _, family := range families {
			if len(family.Metric) == 0 {
				continue
			}
			if count++; count > limits.families {
				return errManyFamilies
			}
			if err := each(family, block.Bytes()); err != nil {
				return err
			}
		}
		return nil
	}
	for {
		line, err := readLine(reader)
		if errors.Is(err, errLineTooLong) {
			bad(err)
			continue
		}
		if len(line) > 0 {
			if of, ok := familyOf(line); ok && !belongs(of, line, name) {
				if err := finish(); err != nil {
					return err
				}
				name = of
			}
			if lines++; lines > limits.lines || block.Len()+len(line)+1 > familyAtMost {
				tooLarge = true
			} else {
				block.Write(line)
				block.WriteByte('\n')
			}
		}
		switch {
		case err == nil:
		case !errors.Is(err, io.EOF):
			return err // drop the truncated family
		case limited.N == 0:
			return errSourceTooLarge
		default:
			return finish()
		}
	}
}

// familyParser parses the text of one family at a time.
type familyParser struct{ parser *expfmt.TextParser }

// parse parses the text of one family. It recovers from panics: the parser of prometheus/common
// 0.66 panics on a sample without a name ("{}"), and its zero value on every name.
func (p *familyParser) parse(text []byte) (families map[string]*dto.MetricFamily, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			families, err = nil, fmt.Errorf("the metrics parser panicked: %v", cause)
		}
		if err != nil {
			p.parser = nil
		}
	}()
	if p.parser == nil {
		parser := expfmt.NewTextParser(model.UTF8Validation)
		p.parser = &parser
	}
	return p.parser.TextToMetricFamilies(bytes.NewReader(text))
}

// readLine returns a line without its end, valid until the next call. It skips a line that is too
// long and returns errLineTooLong.
func readLine(reader *bufio.Reader) ([]byte, error) {
	line, err := reader.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		long := bytes.Clone(line)
		for errors.Is(err, bufio.ErrBufferFull) {
			line, err = reader.ReadSlice('\n')
			if len(long) <= lineAtMost {
				long = append(long, line...)
			}
		}
		if len(long) > lineAtMost {
			if err != nil {
				return nil, err
			}
			return nil, errLineTooLong
		}
		line = long
	}
	return bytes.TrimRight(line, "\r\n"), err
}

// familyOf returns the name in a line: of the family in a HELP or TYPE comment, of the sample
// otherwise. ok is false for other comments and blank lines.
func familyOf(line []byte) (name string, ok bool) {
	text := strings.TrimLeft(string(line), " \t")
	if text == "" {
		return "", false
	}
	if text[0] == '#' {
		text = strings.TrimLeft(text[1:], " \t")
		keyword, rest, _ := strings.Cut(text, " ")
		if keyword != "TYPE" && keyword != "HELP" {
			return "", false
		}
		text = strings.TrimLeft(rest, " \t")
	}
	text = strings.TrimPrefix(text, "{")
	if strings.HasPrefix(text, `"`) { // a quoted UTF-8 name
		for i := 1; i < len(text); i++ {
			switch text[i] {
			case '\\':
				i++
			case '"':
				return text[1:i], true
			}
		}
		return text, true
	}
	if end := strings.IndexAny(text, " \t{"); end >= 0 {
		text = text[:end]
	}
	return text, true
}

// belongs reports whether a line with a name belongs to a family: the names are equal, or the line
// is a sample of a histogram or summary of that family.
func belongs(name string, line []byte, family string) bool {
	if name == family {
		return true
	}
	if bytes.HasPrefix(bytes.TrimLeft(line, " \t"), []byte("#")) {
		return false
	}
	suffix, ok := strings.CutPrefix(name, family)
	return ok && family != "" && (suffix == "_bucket" || suffix == "_sum" || suffix == "_count")
}
