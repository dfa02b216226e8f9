# frozen_string_literal: true

# join.rb on machines that only write down what they are told. `cargo xtask vagrant` runs it, with Debian's Vagrant.

require "vagrant"
require_relative "../join"

# A machine whose scripts answer as they are told to.
class FakeMachine
  attr_reader :name, :ran, :printed, :provider_name
  attr_accessor :env, :up, :joined, :answers

  def initialize(name)
    @name = name
    @provider_name = :libvirt
    @ran = []
    @printed = []
    @up = true
    @answers = {}
  end

  def communicate
    self
  end

  def ui
    self
  end

  def machine(_name, _provider)
    env.fetch(:controller)
  end

  def detail(line)
    @printed << line
  end

  def ready?
    up
  end

  def test(command, sudo:)
    raise "as whom? #{command}" unless sudo && command == "test -e /etc/mooring/agent.toml"

    joined
  end

  def upload(from, _to)
    raise "no script #{from}" unless File.file?(from)
  end

  def sudo(command, error_check:)
    raise "an error would show the command" if error_check

    @ran << command
    script = command[%r{\Ash /tmp/mooring-(\S+)}, 1]
    status, said = answers.fetch(script, [0, "#{script} was here\n"])
    yield(status.zero? ? :stdout : :stderr, said)
    status
  end
end

# Which machine finds the controller: Vagrant's environment has it.
class FakeEnvironment
  def initialize(controller)
    @controller = controller
  end

  def machine(name, provider)
    raise "which machine? #{name} #{provider}" unless name == :controller && provider == :libvirt

    @controller
  end
end

LINE = "mooring-agent join https://c:8776 --token secret --pin sha256:00 --role storage"

def rig(portals: [], admin: false)
  controller = FakeMachine.new(:controller)
  agent = FakeMachine.new(:storage1)
  agent.env = FakeEnvironment.new(controller)
  controller.answers = { "token.sh" => [0, "  #{LINE}\n"], "admin.sh" => [0, "export MOORING_TOKEN=admins\n"] }
  settings = MooringRig::Settings.new
  settings.role = "storage"
  settings.address = "192.168.56.11"
  settings.portals = portals
  settings.admin = admin
  [controller, agent, MooringRig::Join.new(agent, settings)]
end

def check(what, holds)
  abort "FAILED: #{what}" unless holds
  puts "ok: #{what}"
end

def failure
  yield
  nil
rescue MooringRig::Failed => e
  e.message
end

controller, agent, join = rig(portals: %w[10.0.0.1 10.0.1.1], admin: true)
join.provision
scripts = ->(machine) { machine.ran.map { |command| command[/mooring-\S+/] } }
check("the controller makes a line, the agent joins, the controller waits for it, and root gets the token",
      scripts.call(controller) == %w[mooring-token.sh mooring-up.sh mooring-admin.sh] &&
      scripts.call(agent) == %w[mooring-join.sh mooring-operator.sh])
check("the machine's addresses are words, and the line is read", agent.ran.first ==
      "sh /tmp/mooring-join.sh 192.168.56.11 10.0.0.1 10.0.1.1 <<'END-OF-INPUT'\n  #{LINE}\nEND-OF-INPUT")
check("no secret is printed", (agent.printed + controller.printed).grep(/secret|admins/).empty? && !agent.printed.empty?)

controller, agent, join = rig
agent.joined = true
join.provision
check("who has joined gets no new line, is looked after and waited for",
      scripts.call(controller) == %w[mooring-up.sh] && agent.ran.first.include?("<<'END-OF-INPUT'\n\nEND"))

controller, agent, join = rig
controller.up = false
check("without a controller it says what to type", failure { join.provision }.to_s.include?("vagrant up controller"))
check("and does nothing", agent.ran.empty?)

_controller, agent, join = rig
agent.answers = { "join.sh" => [3, "the controller has another pin"] }
said = failure { join.provision }.to_s
check("a script that fails says why, without the line",
      said.include?("storage1: join.sh ended with 3: the controller has another pin") && !said.include?("secret"))
