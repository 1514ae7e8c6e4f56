// Package repeat limits repeated reports. An error in a loop, a state that changes back and forth,
// or a request that is always refused could otherwise fill the journal. A few such reports are made
// per minute; omitted ones are counted.
package repeat

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// LimitPeriod is the period for which Limits are defined.
const LimitPeriod = time.Minute

// ReportTimes are the times of the latest reports, in order.
type ReportTimes []time.Time

// Next returns the time from which another report is allowed, if at most maxReports reports are
// allowed in any LimitPeriod. The result is now, or later.
func (t *ReportTimes) Next(now time.Time, maxReports int) time.Time {
	for len(*t) > 0 && now.Sub((*t)[0]) >= LimitPeriod {
		*t = (*t)[1:]
	}
	if len(*t) < maxReports {
		return now
	}
	return (*t)[len(*t)-maxReports].Add(LimitPeriod)
}

// Add adds the time of a report.
func (t *ReportTimes) Add(now time.Time) { *t = append(*t, now) }

// ErrorClass returns a text without its digits. Texts that differ only in ports, IPv4 addresses,
// times or other numbers have the same class.
func ErrorClass(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, text)
}

// Limits bound the number of reports within LimitPeriod. A report belongs to a class of a subject,
// such as a kind of event.
type Limits struct {
	PerClass   int // reports of one class of a subject
	PerSubject int // reports of all classes of a subject
}

// maxSubjects bounds the number of subjects of a Limiter. Further subjects share their limits.
const maxSubjects = 1000

// Limiter applies Limits to reports. Its zero value is ready to use. It is safe for concurrent use.
type Limiter struct {
	mu       sync.Mutex
	subjects map[string]*subject
	swept    time.Time // last removal of subjects without a report in LimitPeriod
}

type subject struct {
	all     ReportTimes
	classes map[string]*ReportTimes
	omitted int
}

// Allow reports whether a report of a class of the subject name is allowed now. If so, omitted is
// the number of reports of the subject that were refused since the last one that was allowed.
func (l *Limiter) Allow(now time.Time, name, class string, limits Limits) (omitted int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.subject(now, name)
	of := s.classes[class]
	if of == nil {
		of = &ReportTimes{}
	}
	if s.all.Next(now, limits.PerSubject).After(now) || of.Next(now, limits.PerClass).After(now) {
		s.omitted++
		return 0, false
	}
	for class, times := range s.classes {
		if times.Next(now, 1).Equal(now) {
			delete(s.classes, class)
		}
	}
	s.all.Add(now)
	of.Add(now)
	s.classes[class] = of
	omitted, s.omitted = s.omitted, 0
	return omitted, true
}

// Fprintf writes a line to out, but per minute at most 20 lines with the same format and 3 with the
// same ErrorClass. A line that follows omitted ones ends with their number. Write errors are
// ignored.
func (l *Limiter) Fprintf(out io.Writer, format string, arguments ...any) {
	text := fmt.Sprintf(format, arguments...)
	omitted, ok := l.Allow(time.Now(), format, ErrorClass(text), Limits{PerClass: 3,
		PerSubject: 20})
	if !ok {
		return
	}
	if omitted > 0 {
		text += fmt.Sprintf(" (%d more omitted)", omitted)
	}
	_, _ = fmt.Fprintln(out, text)
}

// subject returns the subject with a name and creates it if necessary. Callers hold mu.
func (l *Limiter) subject(now time.Time, name string) *subject {
	if s := l.subjects[name]; s != nil {
		return s
	}
	if len(l.subjects) >= maxSubjects && now.Sub(l.swept) >= LimitPeriod {
		l.swept = now
		for other, s := range l.subjects {
			if s.all.Next(now, 1).Equal(now) {
				delete(l.subjects, other)
			}
		}
	}
	if len(l.subjects) >= maxSubjects {
		name = ""
	}
	if l.subjects == nil {
		l.subjects = map[string]*subject{}
	}
	if l.subjects[name] == nil {
		l.subjects[name] = &subject{classes: map[string]*ReportTimes{}}
	}
	return l.subjects[name]
}
