package capture

import (
	"fmt"
	"strings"
)

// A Table is a table of family inet.
type Table struct {
	Name          string
	OwnedByHelper bool   // the kernel removes the table when outrider-capture ends
	Counter       string // name of a counter that rules share; "": none
	Sets          []Set
	Chains        []Chain
}

// A Set is a named set of elements of one type. An empty set matches nothing.
type Set struct {
	Name     string
	Kind     setKind
	Elements []Element
}

// An Element is a value of a set: Text in nft's syntax, Key in the kernel's. In an interval set it
// is the interval from Key to End. End is exclusive; nil means that the interval has no upper end.
type Element struct {
	Text     string
	Key, End []byte
}

type setKind string

const (
	setPorts   setKind = "inet_service"
	setIPv4    setKind = "ipv4_addr"
	setIPv6    setKind = "ipv6_addr"
	setUsers   setKind = "uid"
	setCGroups setKind = "cgroupsv2"
)

func (k setKind) interval() bool { return k == setIPv4 || k == setIPv6 }

// A Chain is a base chain with policy accept.
type Chain struct {
	Name     string
	Type     string // nat, filter, route
	Hook     string // output, prerouting, input
	Priority int
	Rules    []Rule
}

// A Rule applies its decision if all its matches hold.
type Rule struct {
	// ConfigKey is the configuration key that causes the rule, or a fixed name.
	ConfigKey string
	Matches   []match
	Decision  Decision
	Action    action // replaces the statement of Decision, unless nil
}

// Decision is the treatment of a connection.
type Decision string

// The decisions. Direct ends the evaluation of a chain.
const (
	Direct   Decision = "direct"
	Outbound Decision = "outbound" // redirected to OutboundPort
	Inbound  Decision = "inbound"  // redirected to InboundPort
	refused  Decision = "refused"  // reset
	DNS      Decision = "dns"      // redirected to DNSPort
)

// port returns the port to which the decision redirects connections, 0 if it does not redirect.
func (v Decision) port() uint16 {
	return map[Decision]uint16{Outbound: OutboundPort, Inbound: InboundPort, DNS: dnsPort}[v]
}

// text returns the decision as an nftables statement.
func (v Decision) text() string {
	switch port := v.port(); {
	case port != 0:
		return fmt.Sprintf("redirect to :%d", port)
	case v == refused:
		return "reject with tcp reset"
	}
	return "return"
}

// String renders the table as nft reads it.
func (t *Table) String() string {
	var b strings.Builder
	line := func(indent int, format string, arguments ...any) {
		b.WriteString(strings.Repeat("\t", indent))
		fmt.Fprintf(&b, format+"\n", arguments...)
	}
	line(0, "table inet %s {", t.Name)
	if t.OwnedByHelper {
		line(1, "flags owner")
	}
	if t.Counter != "" {
		line(1, "counter %s {", t.Counter)
		line(1, "}")
	}
	for _, s := range t.Sets {
		line(1, "set %s {", s.Name)
		line(2, "type %s", s.Kind)
		if s.Kind.interval() {
			line(2, "flags interval")
		}
		if len(s.Elements) > 0 {
			texts := make([]string, len(s.Elements))
			for i, e := range s.Elements {
				texts[i] = e.Text
			}
			line(2, "elements = { %s }", strings.Join(texts, ", "))
		}
		line(1, "}")
	}
	for _, c := range t.Chains {
		line(1, "chain %s {", c.Name)
		line(2, "type %s hook %s priority %d; policy accept;", c.Type, c.Hook, c.Priority)
		for _, r := range c.Rules {
			line(2, "%s", r)
		}
		line(1, "}")
	}
	line(0, "}")
	return b.String()
}

// String renders the rule as nft reads it.
func (r Rule) String() string {
	parts, statement := make([]string, 0, len(r.Matches)+3), r.Decision.text()
	if r.Action != nil {
		statement = r.Action.text()
	}
	for _, m := range r.Matches {
		parts = append(parts, m.text())
	}
	return strings.Join(append(parts, "counter", statement,
		fmt.Sprintf("comment %q", r.ConfigKey)), " ")
}
