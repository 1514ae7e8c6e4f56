package capture

import (
	"net/netip"
	"slices"
)

// A Connection is a connection for Explain to evaluate.
type Connection struct {
	Inbound     bool   // made by another host
	Protocol    string // tcp, udp
	Source      netip.Addr
	Destination netip.AddrPort
	Local       bool   // Destination is an address of this host
	ViaLoopback bool   // sent by this host over lo, as all connections to its own addresses are
	UID         uint32 // of the caller, on this host
	CGroup      string // of the caller, without a leading slash
}

// Explanation is the decision about a connection, with its rule and key.
type Explanation struct {
	Decision  Decision `json:"verdict"`
	ConfigKey string   `json:"key"`            // configuration key or name of the rule
	Rule      string   `json:"rule,omitempty"` // nft text; "" if no rule matches
	Chain     string   `json:"chain,omitempty"`
}

// keyRoute is the Explanation.ConfigKey if ruleLoopback matches although the destination belongs to
// another host: a route sends the packets to lo.
const keyRoute = "routed over lo"

// Explain evaluates the chains of tables in the order in which the first packet of a connection
// passes them.
func Explain(c Connection, tables ...*Table) Explanation {
	last := Explanation{Decision: Direct, ConfigKey: "no rule matches"}
	for _, t := range tables {
		for _, chain := range t.Chains {
			if !chain.sees(&c) {
				continue
			}
			at := slices.IndexFunc(chain.Rules, func(r Rule) bool { return r.holds(&c) })
			if at < 0 {
				continue
			}
			r := chain.Rules[at]
			found := Explanation{r.Decision, r.ConfigKey, r.String(), chain.Name}
			if r.ConfigKey == ruleLoopback && !c.Local {
				found.ConfigKey = keyRoute
			}
			if r.Decision != Direct {
				return found
			}
			if last.Rule == "" {
				last = found
			}
		}
	}
	if last.Rule == "" && c.Inbound && !c.Local {
		last.ConfigKey = ruleForwarded
	}
	return last
}

// sees reports whether the first packet of a connection passes the chain. Connections that this
// host opens do not pass the nat chain of prerouting.
func (c *Chain) sees(connection *Connection) bool {
	switch c.Hook {
	case "output":
		return !connection.Inbound
	case "prerouting":
		return connection.Inbound
	}
	return connection.Local // the input hook sees packets to addresses of this host
}

func (r *Rule) holds(c *Connection) bool {
	for _, m := range r.Matches {
		if !m.holds(c) {
			return false
		}
	}
	return true
}
