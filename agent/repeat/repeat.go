// Package repeat bounds how often the same thing is reported. What others can cause without end (an
// error in a loop, a state that comes and goes, a refused request) is reported a few times a
// minute; the rest is counted.
package repeat

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// LimitPeriod is the time in which reports are counted.
const LimitPeriod = time.Minute

// ReportTimes are the times of the last reports.
type ReportTimes []time.Time

// Next returns when a further report is allowed if there may be most of them within any
// LimitPeriod: now, or later.
func (t *ReportTimes) Next(now time.Time, most int) time.Time {
	for len(*t) > 0 && now.Sub((*t)[0]) >= LimitPeriod {
		*t = (*t)[1:]
	}
	if len(*t) < most {
		return now
	}
	return (*t)[len(*t)-most].Add(LimitPeriod)
}

// Add records a report.
func (t *ReportTimes) Add(now time.Time) { *t = append(*t, now) }

// ErrorClass returns a text without digits. Errors of one class differ in ports, addresses, times
// or numbers only.
func ErrorClass(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, text)
}

// Limits are how many reports within LimitPeriod are allowed.
type Limits struct {
	Class int // of one class of a subject
	All   int // of all classes of a subject
}

// maxSubjects bounds the subjects of a Limiter. More share one.
const maxSubjects = 1000

// Limiter applies Limits. Its zero value is ready. It is safe for concurrent use.
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

// Allow reports whether a class of a subject may be reported now. If so, omitted is the number of
// those of the subject that were not since the last report.
func (l *Limiter) Allow(now time.Time, name, class string, limits Limits) (omitted int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.subject(now, name)
	of := s.classes[class]
	if of == nil {
		of = &ReportTimes{}
	}
	if s.all.Next(now, limits.All).After(now) || of.Next(now, limits.Class).After(now) {
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

// Fprintf writes a line to out: at most 20 with one format and 3 of one class a minute. A line ends
// with the number of omitted ones with its format before it. Write errors are ignored.
func (l *Limiter) Fprintf(out io.Writer, format string, arguments ...any) {
	text := fmt.Sprintf(format, arguments...)
	omitted, ok := l.Allow(time.Now(), format, ErrorClass(text), Limits{Class: 3, All: 20})
	if !ok {
		return
	}
	if omitted > 0 {
		text += fmt.Sprintf(" (%d more omitted)", omitted)
	}
	_, _ = fmt.Fprintln(out, text)
}

// subject returns the subject of a name. Callers hold mu.
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
