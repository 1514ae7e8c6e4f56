package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
)

// meshPort is the default port of istiod and outrider-discoveryd for xDS over TLS.
const meshPort = "15012"

// joinRequest has the arguments and flags of `outrider join`.
type joinRequest struct {
	addresses  []string // addresses of the server, HOST:PORT
	token      string   // path of the file with the join token
	roots      string   // path of the file with the server's root certificates
	serverName string   // name in the server's certificate; "": the host of each address
	namespace  string   // namespace of the WorkloadGroup; "": no --group
	group      string   // name of the WorkloadGroup; "": the host is not registered
	timeout    time.Duration
}

func (a *app) joinCommand() *cobra.Command {
	var r joinRequest
	var group string
	command := &cobra.Command{
		Use:   "join ADDRESS",
		Short: "Become part of a mesh: of outrider-discoveryd, or of istiod",
		Long: "Join makes this host a workload of a mesh, under the service account of the token.\n" +
			"ADDRESS is that of the server (port 15012 unless it has another one), or several\n" +
			"with commas between. The token is one of \"outrider-discoveryd token\", or of\n" +
			"\"kubectl create token --audience istio-ca\".\n\n" +
			"It checks the configuration, the token, the clock and the server, which must issue\n" +
			"a certificate. Then it writes the drop-in 90-join.toml with copies of token and\n" +
			"root certificates, and has the agent reload, or enables and starts its unit. It\n" +
			"returns once the host is in the mesh: the agent has a certificate and is\n" +
			"connected, and Envoy has accepted the configuration of the mesh. If that fails, or\n" +
			"on ^C, everything becomes what it was before.\n\n" +
			"The copy of the token is removed once the certificate is stored, encrypted, for\n" +
			"the next start: it renews itself. Without that (see [identity] persist) the copy\n" +
			"stays, because a restart of the agent needs it. FILE itself is not needed any more.\n\n" +
			"A host that has joined leaves before it joins again, unless its certificate has\n" +
			"expired: then join renews it with a new token.",
		Example: "  outrider join mesh.example.com --token web.token --ca mesh-root.pem --group shop/web",
		Args:    cobra.ExactArgs(1),
		// The argument is an address, so file names are not completed.
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(command *cobra.Command, arguments []string) error {
			var err error
			if r.addresses, err = meshAddresses(arguments[0]); err != nil {
				return err
			}
			if r.token == "" || r.roots == "" {
				return usagef("join needs --token FILE and --ca FILE")
			}
			if r.timeout <= 0 {
				return usagef("--timeout %s is not positive", r.timeout)
			}
			if group != "" {
				var ok bool
				if r.namespace, r.group, ok = strings.Cut(group, "/"); !ok || r.namespace == "" ||
					r.group == "" {
					return usagef("--group %s is not NAMESPACE/NAME", group)
				}
			}
			if os.Geteuid() != 0 {
				return &api.Error{Status: 403, Message: "not authorised: only root may join a mesh"}
			}
			return a.join(command.Context(), r)
		},
	}
	flags := command.Flags()
	flags.StringVar(&r.token, "token", "", "`file` with the token for the first certificate")
	flags.StringVar(&r.roots, "ca", "", "`file` with the root certificates of the server, in PEM")
	flags.StringVar(&group, "group", "",
		"`NAMESPACE/NAME` of the WorkloadGroup to register this host with")
	flags.StringVar(&r.serverName, "server-name", "",
		"the `name` in the server's certificate (default the host of ADDRESS)")
	flags.DurationVar(&r.timeout, "timeout", time.Minute,
		"give up, and undo, if the host is not in the mesh after this `duration`")
	return command
}

// meshAddresses splits a comma-separated list of addresses, and adds meshPort to those without a
// port.
func meshAddresses(list string) ([]string, error) {
	addresses := strings.Split(list, ",")
	for i, address := range addresses {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			host, port = strings.Trim(address, "[]"), meshPort
		}
		if _, err := strconv.ParseUint(port, 10, 16); err != nil || host == "" ||
			strings.ContainsAny(host, " /") {
			return nil, usagef("%q is not HOST or HOST:PORT", address)
		}
		addresses[i] = net.JoinHostPort(host, port)
	}
	return addresses, nil
}

// joined is the JSON output of `outrider join`.
type joined struct {
	Address  string    `json:"address"`
	SPIFFEID string    `json:"spiffe_id"`
	NotAfter time.Time `json:"not_after"` // expiry of the certificate
	Epoch    *int      `json:"epoch,omitempty"`
	Files    []string  `json:"files"`
	// Token is the reason why the copy of the token has not been removed; "": it has been removed.
	Token string   `json:"token_kept,omitempty"`
	Notes []string `json:"notes,omitempty"`
	Took  float64  `json:"seconds"`
}

func (a *app) join(ctx context.Context, r joinRequest) error {
	began := time.Now()
	h, err := a.meshHost(ctx)
	if err != nil {
		return err
	}
	defer h.close()
	shown := a.startProgress("checking token, server and clock", "")
	defer shown.end()
	plan, err := h.plan(ctx, r, time.Now())
	if err == nil {
		err = plan.tryServer(ctx)
	}
	if err != nil {
		return err
	}
	var result joined
	err = plan.write()
	if err == nil {
		result, err = plan.enter(ctx, shown)
	}
	if err != nil {
		if ctx.Err() != nil {
			err = errors.New("interrupted")
		} else {
			err = h.withConditions(ctx, err)
		}
		return plan.undo(ctx, err, shown)
	}
	plan.removeToken(ctx, &result)
	result.Notes = append(plan.notes, result.Notes...)
	result.Took = time.Since(began).Seconds()
	shown.end()
	return a.print(result, func() { a.printJoined(result) })
}

func (a *app) printJoined(r joined) {
	fmt.Fprintf(a.out, "joined the mesh of %s as %s (%.1f s)\n", r.Address, r.SPIFFEID, r.Took)
	fmt.Fprintf(a.out, "certificate valid until %s UTC, renewed by the agent\n",
		r.NotAfter.UTC().Format(time.DateTime))
	if r.Epoch != nil {
		fmt.Fprintf(a.out, "epoch %d serves the configuration of the mesh\n", *r.Epoch)
	}
	for _, file := range r.Files {
		fmt.Fprintln(a.out, "wrote", file)
	}
	for _, note := range append(r.Notes, r.Token) {
		if note != "" {
			fmt.Fprintln(a.out, "note:", note)
		}
	}
}
