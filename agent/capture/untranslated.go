package capture

import (
	"fmt"
	"time"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// ruleUnanswered is the name of the rule that drops SYNs of connections that conntrack already
// knows without an answer.
const ruleUnanswered = "direct connection without an answer before"

// untranslated returns the chain that drops SYNs which the rules should redirect but the kernel
// does not: conntrack has an unanswered connection with the same addresses and ports, which Envoy
// itself opened or which began while the rules were missing. outrider-capture then deletes the
// conntrack entry, and the SYN retransmitted a second later is redirected.
func (b *builder) untranslated(s *Settings, users Users, families AddressFamilies) Chain {
	b.table.Counter = counterUnanswered
	rules := append(b.start(families), rule(ruleRedirected, Direct, redirected{}))
	for _, r := range b.outbound(s, users) {
		if r.Decision != Direct {
			r.ConfigKey, r.Matches = ruleUnanswered, append(r.Matches, isNew{})
			r.Action = drop{counter: counterUnanswered}
		}
		rules = append(rules, r)
	}
	return Chain{Name: "untranslated", Type: "filter", Hook: "output", Rules: rules,
		Priority: -1} // precedes closedRules, which would reset the connection
}

// counterUnanswered is the name of the counter of packets that the chain untranslated drops.
const counterUnanswered = "unanswered"

// ruleUnredirected is the name of the rule that drops inbound SYNs which the kernel did not
// redirect.
const ruleUnredirected = "inbound connection that was not redirected"

// unredirected returns the chain that drops inbound SYNs which should be redirected but were not;
// without it they would reach the application. The kernel does not redirect a SYN that it considers
// invalid, or whose connection conntrack knows from an earlier unanswered segment. A client can
// cause both.
func (b *builder) unredirected(s *Settings, families AddressFamilies) Chain {
	rules := append(b.start(families), rule(ruleRedirected, Direct, redirected{}),
		rule(ruleLoopback, Direct, loopback{arriving: true}))
	for _, r := range b.inbound(s) {
		if r.Decision != Direct {
			r.ConfigKey, r.Action = ruleUnredirected, drop{}
			r.Matches = append(r.Matches, isNew{orInvalid: true})
		}
		rules = append(rules, r)
	}
	return Chain{Name: "unredirected", Type: "filter", Hook: "input", Rules: rules, Priority: -1}
}

// drop discards a packet.
type drop struct {
	counter string // counter of the table that also counts the packet; "": none
}

func (d drop) text() string {
	if d.counter != "" {
		return fmt.Sprintf("counter name %q drop", d.counter)
	}
	return "drop"
}

func (d drop) exprs() (all []expr.Any) {
	if d.counter != "" {
		all = append(all, &expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: d.counter})
	}
	return append(all, &expr.Verdict{Kind: expr.VerdictDrop})
}

// isNew matches packets of connections that conntrack considers new, because they have no answer
// yet. With orInvalid it also matches packets that conntrack cannot assign to a connection.
type isNew struct{ orInvalid bool }

func (m isNew) text() string {
	if m.orInvalid {
		return "ct state invalid,new"
	}
	return "ct state new"
}

func (m isNew) exprs() []expr.Any {
	states := uint32(1 << (2 + 1)) // NF_CT_STATE_BIT(IP_CT_NEW)
	if m.orInvalid {
		states |= 1 << 0 // NF_CT_STATE_INVALID_BIT
	}
	return []expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: register},
		&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(states), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: register, Data: make([]byte, 4)}}
}

// holds returns false: Explain assumes that a connection began after the rules came into force.
func (isNew) holds(*Connection) bool { return false }

// forget schedules the deletion of unanswered connections.
type forget struct {
	until   time.Time
	dropped uint64 // packets that the chain untranslated has dropped
	failure string // error of the last attempt
}

// begin schedules the deletion after rules have come into force. outrider-capture repeats it until
// half of checkEvery has passed, because the entry of a SYN that the kernel was handling at that
// moment appears later.
func (f *forget) begin() { f.until = time.Now().Add(checkEvery / 2) }

// forgetUnanswered deletes unanswered connections after rules have come into force, and when the
// chain untranslated has dropped packets.
func (h *helper) forgetUnanswered(now time.Time) {
	dropped, deleted, err := h.forget.dropped, 0, error(nil)
	if h.rules != nil {
		dropped, err = h.rules.counted(h.installed.table)
	}
	if err == nil && dropped != h.forget.dropped {
		h.forget.begin()
		h.forget.dropped = dropped
	}
	if err == nil && !h.forget.until.IsZero() {
		deleted, err = h.plain.forgetUnanswered()
	}
	failure := ""
	if err != nil {
		failure = err.Error()
	} else if deleted < maxForgotten && !now.Before(h.forget.until) {
		h.forget.until = time.Time{}
	}
	if failure != h.forget.failure && failure != "" {
		h.logf("connections may go direct for two minutes: %s", failure)
	}
	h.forget.failure = failure
}
