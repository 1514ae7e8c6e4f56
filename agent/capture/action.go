package capture

import (
	"fmt"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// An action is an nftables statement that a rule uses instead of the statement of its decision.
type action interface {
	text() string
	exprs() []expr.Any
}

// toSource redirects a connection of this host over IPv6 to Envoy's outbound listener at the
// connection's own source address. A plain redirect would go to ::1, which firewalld rejects on all
// interfaces but lo.
type toSource struct{}

func (toSource) text() string { return fmt.Sprintf("dnat ip6 to ip6 saddr:%d", OutboundPort) }

func (toSource) exprs() []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: 8,
			Len: 16},
		&expr.Immediate{Register: register + 1, Data: binaryutil.BigEndian.PutUint16(OutboundPort)},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV6, RegAddrMin: register,
			RegProtoMin: register + 1, Specified: true}}
}
