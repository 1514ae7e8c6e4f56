package capture

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// elementsAtOnce is the maximum number of set elements in one message: an attribute has at most 64
// KiB.
const elementsAtOnce = 512

var chainHooks = map[string]*nftables.ChainHook{"output": nftables.ChainHookOutput,
	"prerouting": nftables.ChainHookPrerouting, "input": nftables.ChainHookInput}

var setTypes = map[setKind]nftables.SetDatatype{setPorts: nftables.TypeInetService,
	setIPv4: nftables.TypeIPAddr, setIPv6: nftables.TypeIP6Addr, setUsers: nftables.TypeUID,
	setCGroups: nftables.TypeCGroupV2}

// install replaces a table in one transaction.
func (s *ownerSocket) install(t *Table) error {
	conn, err := s.conn()
	if err != nil {
		return err
	}
	s.owned = t.OwnedByHelper
	// Deleting a missing table is an error, so it is created first, with the same flags.
	table := &nftables.Table{Name: t.Name, Family: nftables.TableFamilyINet}
	conn.AddTable(table)
	conn.DelTable(table)
	conn.AddTable(table)
	if t.Counter != "" {
		conn.AddObj(&nftables.CounterObj{Table: table, Name: t.Counter})
	}
	for _, set := range t.Sets {
		if err := addSet(conn, table, set); err != nil {
			return fmt.Errorf("create the nftables set %s: %w", set.Name, err)
		}
	}
	for _, c := range t.Chains {
		chain := conn.AddChain(&nftables.Chain{Name: c.Name, Table: table,
			Type: nftables.ChainType(c.Type), Hooknum: chainHooks[c.Hook],
			Priority: nftables.ChainPriorityRef(nftables.ChainPriority(c.Priority))})
		for _, r := range c.Rules {
			conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: r.exprs(),
				UserData: userdata.AppendString(nil, userdata.TypeComment, r.ConfigKey)})
		}
	}
	if err := s.flush(conn); err != nil {
		return fmt.Errorf("install the nftables table %s: %w", t.Name, err)
	}
	return nil
}

func addSet(conn *nftables.Conn, table *nftables.Table, set Set) error {
	s := &nftables.Set{Table: table, Name: set.Name, KeyType: setTypes[set.Kind],
		Interval: set.Kind.interval()}
	if set.Kind == setUsers || set.Kind == setCGroups {
		s.KeyByteOrder = binaryutil.NativeEndian
	}
	if err := conn.AddSet(s, nil); err != nil {
		return err
	}
	var elements []nftables.SetElement
	for _, e := range set.Elements {
		elements = append(elements, nftables.SetElement{Key: e.Key})
		if e.End != nil {
			elements = append(elements, nftables.SetElement{Key: e.End, IntervalEnd: true})
		}
	}
	for chunk := range slices.Chunk(elements, elementsAtOnce) {
		if err := conn.SetAddElements(s, chunk); err != nil {
			return err
		}
	}
	return nil
}

func (r *Rule) exprs() []expr.Any {
	var all []expr.Any
	for _, m := range r.Matches {
		all = append(all, m.exprs()...)
	}
	all = append(all, &expr.Counter{})
	if r.Action != nil {
		return append(all, r.Action.exprs()...)
	}
	switch port := r.Decision.port(); {
	case port != 0:
		return append(all, &expr.Immediate{Register: register,
			Data: binaryutil.BigEndian.PutUint16(port)},
			&expr.Redir{RegisterProtoMin: register, Flags: unix.NF_NAT_RANGE_PROTO_SPECIFIED})
	case r.Decision == refused:
		return append(append(all, isTCP{}.exprs()...),
			&expr.Reject{Type: unix.NFT_REJECT_TCP_RST})
	}
	return append(all, &expr.Verdict{Kind: expr.VerdictReturn})
}

// remove deletes a table, if it exists.
func (s *ownerSocket) remove(name string) error {
	conn, err := s.conn()
	if err != nil {
		return err
	}
	conn.DelTable(&nftables.Table{Name: name, Family: nftables.TableFamilyINet})
	if err := s.flush(conn); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete the nftables table %s: %w", name, err)
	}
	return nil
}

// tables lists the names of the tables of family inet.
func (s *ownerSocket) tables() ([]string, error) {
	conn, err := s.conn()
	if err != nil {
		return nil, err
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("list the nftables tables: %w", err)
	}
	names := make([]string, 0, len(tables))
	for _, t := range tables {
		names = append(names, t.Name)
	}
	return names, nil
}

// counted returns the number of packets of the counter Table.Counter, which rules of t share.
func (s *ownerSocket) counted(t *Table) (uint64, error) {
	conn, err := s.conn()
	if err != nil {
		return 0, err
	}
	objects, err := conn.GetObjects(&nftables.Table{Name: t.Name,
		Family: nftables.TableFamilyINet})
	if err != nil {
		return 0, fmt.Errorf("cannot read counter %s of the nftables table %s: %w", t.Counter,
			t.Name, err)
	}
	for _, o := range objects {
		if counter, ok := o.(*nftables.CounterObj); ok && counter.Name == t.Counter {
			return counter.Packets, nil
		}
	}
	return 0, fmt.Errorf("the nftables table %s has no counter %s", t.Name, t.Counter)
}

// counters sums the counters of the rules of a table by key, in the order of the rules.
func (s *ownerSocket) counters(t *Table) ([]Counter, error) {
	conn, err := s.conn()
	if err != nil {
		return nil, err
	}
	var all []Counter
	table := &nftables.Table{Name: t.Name, Family: nftables.TableFamilyINet}
	for _, c := range t.Chains {
		rules, err := conn.GetRules(table, &nftables.Chain{Name: c.Name, Table: table})
		if err != nil {
			return nil, fmt.Errorf("list the rules of the nftables table %s: %w", t.Name, err)
		}
		for _, r := range rules {
			key, _ := userdata.GetString(r.UserData, userdata.TypeComment)
			at := slices.IndexFunc(all, func(c Counter) bool { return c.Rule == key })
			if at < 0 {
				at = len(all)
				all = append(all, Counter{Rule: key})
			}
			for _, e := range r.Exprs {
				if counter, ok := e.(*expr.Counter); ok {
					all[at].Packets += counter.Packets
					all[at].Bytes += counter.Bytes
				}
			}
		}
	}
	return all, nil
}
