"""Services of the tests: servers that were found, and private ones that may be stopped, killed, paused or filled."""

from .certificates import Certificates, certificates
from .etcd_server import PrivateEtcd
from .found import (
    OWN_NAME,
    amqp_vhost,
    mysql_database,
    mysql_database_beside,
    postgres_database,
    postgres_database_beside,
    redis_database,
    with_path,
)
from .mariadb_server import PrivateMariadb
from .memcached_server import PrivateMemcached
from .pgbouncer_server import PrivatePgbouncer
from .postgres_server import PrivatePostgres
from .proxy import TcpProxy
from .rabbit_server import PrivateRabbit
from .redis_server import PrivateRedis
from .sentinel_server import MASTER_NAME, PrivateSentinel
from .server import PrivateServer, ServiceError, free_port, wait_until

__all__ = [
    "MASTER_NAME",
    "OWN_NAME",
    "Certificates",
    "PrivateEtcd",
    "PrivateMariadb",
    "PrivateMemcached",
    "PrivatePgbouncer",
    "PrivatePostgres",
    "PrivateRabbit",
    "PrivateRedis",
    "PrivateSentinel",
    "PrivateServer",
    "ServiceError",
    "TcpProxy",
    "amqp_vhost",
    "certificates",
    "free_port",
    "mysql_database",
    "mysql_database_beside",
    "postgres_database",
    "postgres_database_beside",
    "redis_database",
    "wait_until",
    "with_path",
]
